// Gates: what stands in a [[gate]] of a run file, the presets of configs/gates, and which gates
// make no sense. daemon/gates judges them. Pure.
#pragma once

#include "common/spec/field.h"
#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

inline constexpr size_t kMostGates = 32; // of a run file

// The keys of a [[gate]]. Bounds that are not given are NaN.
FieldTable gate_fields(GateRule& rule);
// False: a bound that is not given, which is neither printed nor stored.
bool is_given(const Field& field);

struct GateMetricInfo {
  GateMetric metric;
  std::string_view unit;
  double lowest, highest; // that it can have
  std::string_view meaning;
};
const GateMetricInfo& gate_metric(GateMetric metric);

struct GateOverInfo {
  GateOver over;
  std::string_view meaning;
};
std::span<const GateOverInfo> gate_overs();

std::string bound_number(double value);
// "at most 75", "0.5 to 1": as people read it.
std::string bound_text(const GateRule& rule);

struct GatePreset {
  std::string_view name, text; // the file's text
  std::vector<GateRule> gates;
};
std::vector<std::string_view> gate_preset_names();
const std::vector<GatePreset>& gate_presets();

// Those of the file, then those of its presets.
std::vector<GateRule> all_gates(const RunSpec& spec);

// Bounds that cannot hold, gates that are never judged, metrics that this run does not have.
void check_gates(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
