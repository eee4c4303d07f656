// The data sets that a run file names, opened. Any thread.
#pragma once

#include "common/dataset/dataset.h"
#include "common/spec/run_spec.h"
#include "worker/data/source.h"

#include <vector>

namespace nsa::train {

// One, or those of a mixture with their whole weights. All have one tokenizer: kInvalidArgument.
Result<std::vector<data::Source>> open_sources(const spec::DataSection& section,
                                               dataset::Check check);

} // namespace nsa::train
