// Measures how long a model's initial values take to draw, which is part of every new start.
#pragma once

#include "common/spec/run_spec.h"

namespace nsa::bench {

// Draws all values of the run's model as a worker does, with one thread and with one thread a
// processor. Prints wall and CPU seconds.
void time_initial_values(const spec::RunSpec& spec);

} // namespace nsa::bench
