#include "daemon/requests/replaced_data.h"

#include "common/dataset/generations.h"

namespace nsa::control {

Result<std::string> replaced_data(const spec::RunSpec& before, const spec::RunSpec& after,
                                  const std::vector<manifest::Found>& found,
                                  std::optional<uint64_t> step, const FileOpener& open) {
  if (before.data.path == after.data.path) return std::string();
  const auto old = dataset::read_source({before.data.path, 1, before.data.follow}, open);
  if (!old)
    return fail(ErrorCode::kInvalidArgument,
                "data.path may change where the tokenizer stays, but the data set of the run "
                "cannot be read: " +
                    old.error().what,
                "bring it back to " + before.data.path + ", or submit a new run");
  NSA_TRY_ASSIGN(const auto now,
                 dataset::read_source({after.data.path, 1, after.data.follow}, open));
  if (old->tokenizer.digest != now.tokenizer.digest)
    return fail(ErrorCode::kInvalidArgument,
                "a resume may not change the tokenizer: " + before.data.path + " has " +
                    old->tokenizer.name + ", " + after.data.path + " has " + now.tokenizer.name +
                    (old->tokenizer.name == now.tokenizer.name ? " with other tokens" : ""),
                "prepare the text with the same tokenizer, or submit a new run");
  for (const manifest::Found& one : found)
    if (one.step == step && one.manifest && one.manifest->data.dataset_digest != now.digest)
      return one.manifest->data.dataset_digest;
  return std::string();
}

} // namespace nsa::control
