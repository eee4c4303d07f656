// What [[restart.fallback]] may say: its keys, and what is refused at submission. Pure.
#pragma once

#include "common/spec/field.h"
#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// The keys of a table [[restart.fallback]].
FieldTable fallback_fields(FallbackRule& rule);

// Rungs that change nothing, that lead to a run which is refused, or that touch what must stay.
void check_ladder(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
