// Opens the data sets that a run file names. Callable from any thread.
#pragma once

#include "common/dataset/dataset.h"
#include "common/spec/run_spec.h"
#include "worker/data/source.h"

#include <vector>

namespace nsa::train {

// Returns one source, or the sources of a mixture with integer weights. Error: kInvalidArgument if
// their tokenizers differ.
Result<std::vector<data::Source>> open_sources(const spec::DataSection& section,
                                               dataset::Check check);

} // namespace nsa::train
