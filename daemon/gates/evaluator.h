// Judges the gates of a run ([[gate]], common/spec/gate.h). It reads each record of rank 0 and
// returns a verdict at the end of each window of steps. It fails a gate early if no later record
// can change the result. A window whose records lack the metric fails. A window without any record
// is not judged, because nsad was not running or newer records replaced the lost ones.
//
//   Evaluator gates(spec::all_gates(spec));
//   gates.begin_attempt(1);
//   for (Verdict& verdict : gates.observe(step, figures)) ...
//
// Each attempt begins new windows, because steps after the checkpoint are computed again. The class
// reads no clock and no file. A window uses the same memory whatever its length. Plain values; any
// thread may use them.
#pragma once

#include "common/base/json.h"
#include "common/spec/gate.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace nsa::gates {

inline constexpr size_t kMetricCount = kChoiceNames<spec::GateMetric>.size();

// The metrics of one record. An empty value means that the record lacks the metric. Such a record
// counts, so a gate on a metric that stays missing fails. A metric that cannot be known yet is the
// exception.
class Figures {
public:
  std::optional<double>& operator[](spec::GateMetric metric) {
    return values_[static_cast<size_t>(metric)];
  }
  const std::optional<double>& operator[](spec::GateMetric metric) const {
    return values_[static_cast<size_t>(metric)];
  }
  void set_not_yet_known(spec::GateMetric metric) { early_[static_cast<size_t>(metric)] = true; }
  bool is_not_yet_known(spec::GateMetric metric) const {
    return early_[static_cast<size_t>(metric)];
  }

private:
  std::array<std::optional<double>, kMetricCount> values_;
  std::array<bool, kMetricCount> early_{};
};

struct Verdict {
  size_t gate = 0; // index into rules()
  bool passed = false;
  std::optional<double> value; // empty if the metric was missing in all or too many records
  uint64_t first_step = 0, last_step = 0;
  bool changed = false; // differs from the verdict before in this attempt, or is the first
};

class Evaluator {
public:
  Evaluator() = default;
  explicit Evaluator(std::vector<spec::GateRule> rules);

  const std::vector<spec::GateRule>& rules() const { return rules_; }
  // Returns the newest verdict for each rule, of any attempt.
  const std::vector<std::optional<Verdict>>& newest() const { return newest_; }

  // `step` is the attempt's first step.
  void begin_attempt(uint64_t step);
  // Reads a record of the steps up to `step`, which must be later than the step before.
  std::vector<Verdict> observe(uint64_t step, const Figures& figures);
  // The run has done its last step, so windows that end there are judged without another record.
  std::vector<Verdict> finish(uint64_t step);

  // The verdicts and their rules, to be stored. recall() ignores memory of other rules.
  nlohmann::json memory() const;
  void recall(const nlohmann::json& memory);

private:
  // Sums of the ten tenths of a window. Growth compares the last tenth with the first.
  static constexpr size_t kParts = 10;
  struct Window {
    uint64_t first = 0, records = 0; // `records` counts all, with the metric or without
    std::array<double, kParts> sums{};
    std::array<uint64_t, kParts> counts{};
    double lowest = 0, highest = 0, newest = 0;
    uint64_t above = 0;
  };
  struct Gate {
    Window window;
    std::optional<bool> told; // whether the gate's latest verdict of this attempt was a pass
  };

  uint64_t last_step(size_t gate) const;
  void add(size_t gate, uint64_t step, double value);
  std::optional<double> value_of(size_t gate) const;
  bool is_lost(size_t gate) const; // no later record can make the window pass
  void judge(size_t gate, uint64_t last_step, std::vector<Verdict>& verdicts);

  std::vector<spec::GateRule> rules_;
  std::vector<Gate> gates_;
  std::vector<std::optional<Verdict>> newest_;
};

// Returns a text such as "1.099 (at least 0.5) over steps 11 to 60" or "missing (at most 75) over
// steps 11 to 60".
std::string text_of(const spec::GateRule& rule, const Verdict& verdict);

} // namespace nsa::gates
