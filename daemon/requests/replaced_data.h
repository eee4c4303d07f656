// Decides whether a resume may continue with another data set. It reads both manifests: call it on
// a thread that may wait for files.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/manifest/manifest.h"
#include "common/spec/run_spec.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

// Digest of the data set that `after` replaces, as the checkpoint of `step` names it; empty if none
// is replaced. Fails with kInvalidArgument if the tokenizers differ.
Result<std::string> replaced_data(const spec::RunSpec& before, const spec::RunSpec& after,
                                  const std::vector<manifest::Found>& found,
                                  std::optional<uint64_t> step, const FileOpener& open);

} // namespace nsa::control
