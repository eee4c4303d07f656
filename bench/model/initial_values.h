// How long a model's initial values take to draw: part of every fresh start.
#pragma once

#include "common/spec/run_spec.h"

namespace nsa::bench {

// Draws all values of the run's model as a worker does, by one thread and by as many as there are
// processors, and prints wall and processor seconds.
void time_initial_values(const spec::RunSpec& spec);

} // namespace nsa::bench
