// Gates: the keys of a [[gate]] in a run file, the presets of configs/gates, and checks of gates
// that make no sense. daemon/gates evaluates them. No I/O.
#pragma once

#include "common/spec/field.h"
#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

inline constexpr size_t kMostGates = 32; // limit for a run file

// The keys of a [[gate]]. Bounds that are not set are NaN.
FieldTable gate_fields(GateRule& rule);
// Returns false for a bound that is not set, which is neither printed nor stored.
bool is_given(const Field& field);

struct GateMetricInfo {
  GateMetric metric;
  std::string_view unit;
  double lowest, highest; // range of the metric
  std::string_view meaning;
};
const GateMetricInfo& gate_metric(GateMetric metric);

struct GateOverInfo {
  GateOver over;
  std::string_view meaning;
};
std::span<const GateOverInfo> gate_overs();

std::string bound_number(double value);
// Formats bounds for users: "at most 75", "0.5 to 1".
std::string bound_text(const GateRule& rule);

struct GatePreset {
  std::string_view name, text; // text of the preset's file
  std::vector<GateRule> gates;
};
std::vector<std::string_view> gate_preset_names();
const std::vector<GatePreset>& gate_presets();

// Returns the gates of the file, then those of its presets.
std::vector<GateRule> all_gates(const RunSpec& spec);

// Rejects bounds that cannot hold, gates that are never evaluated, and metrics that this run does
// not have.
void check_gates(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
