// The keys that [[restart.fallback]] may contain, and the rules that are checked at submission.
// Pure.
#pragma once

#include "common/spec/field.h"
#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// The keys of a table [[restart.fallback]].
FieldTable fallback_fields(FallbackRule& rule);

// Refuses rungs that change nothing, rungs whose run is refused, and keys that no rung may change.
void check_ladder(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
