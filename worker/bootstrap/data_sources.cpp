#include "worker/bootstrap/data_sources.h"

#include "common/dataset/generations.h"
#include "common/spec/mixture.h"

namespace nsa::train {

// nsad compared the tokenizers at submission, but a data set may have been prepared again since.
Result<std::vector<data::Source>> open_sources(const spec::DataSection& section,
                                               dataset::Check check) {
  const std::vector<spec::DataSource> named = spec::sources_of(section);
  const std::vector<int64_t> weights = spec::whole_weights(named);
  std::vector<data::Source> sources;
  for (size_t i = 0; i < named.size(); ++i) {
    NSA_TRY_ASSIGN(auto opened, named[i].follow ? dataset::open_arrived(named[i].path, check)
                                                : dataset::Dataset::open(named[i].path, check));
    const dataset::TokenizerRecord& ours = opened->manifest().tokenizer;
    if (i > 0 && ours.digest != sources[0].dataset->manifest().tokenizer.digest)
      return fail(ErrorCode::kInvalidArgument,
                  named[i].path + " has text of tokenizer " + ours.name + ", " + named[0].path +
                      " of another",
                  "prepare both with the same tokenizer");
    sources.push_back({std::move(opened), weights[i], named[i].follow ? named[i].path : ""});
  }
  return sources;
}

} // namespace nsa::train
