// The rules between the fields of a RunSpec. No I/O; internal to this library.
#pragma once

#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// Adds a problem for each broken rule whose fields are all valid. A rule about a field that is
// already reported would only repeat it.
void check_rules(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
