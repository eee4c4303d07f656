// Judges the gates of a run ([[gate]], common/spec/gate.h): fed with what each record of rank 0
// says, it tells a verdict at the end of each window of steps, and at once where no later record
// can mend it. A window whose records lack the metric fails. One
// without any record is not judged: nsad was away, and records gave way to newer ones.
//
//   Evaluator gates(spec::all_gates(spec));
//   gates.begin_attempt(1);
//   for (Verdict& verdict : gates.observe(step, figures)) ...
//
// Windows of an attempt begin anew: records behind a checkpoint are computed again. No clock, no
// file; a window costs the same memory however long it is. Plain values; any thread.
#pragma once

#include "common/base/json.h"
#include "common/spec/gate.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace nsa::gates {

inline constexpr size_t kMetricCount = kChoiceNames<spec::GateMetric>.size();

// What one record says. Nothing: it does not have that metric. Such a record counts, since a metric
// that stays missing fails its gate; but for one that cannot be known yet.
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
  std::optional<double> value; // nothing: the metric was missing, or too little of it
  uint64_t first_step = 0, last_step = 0;
  bool changed = false; // another than the one before in this attempt, or the first
};

class Evaluator {
public:
  Evaluator() = default;
  explicit Evaluator(std::vector<spec::GateRule> rules);

  const std::vector<spec::GateRule>& rules() const { return rules_; }
  // Of each rule, the newest of all attempts.
  const std::vector<std::optional<Verdict>>& newest() const { return newest_; }

  // Its first step.
  void begin_attempt(uint64_t step);
  // A record of the steps up to `step`, later than the one before.
  std::vector<Verdict> observe(uint64_t step, const Figures& figures);
  // The run has done its last step: windows that end with it are judged without a further record.
  std::vector<Verdict> finish(uint64_t step);

  // What outlives nsad. Those of other rules are not taken.
  nlohmann::json memory() const;
  void recall(const nlohmann::json& memory);

private:
  // Sums of the ten tenths of a window: a growth compares the last with the first.
  static constexpr size_t kParts = 10;
  struct Window {
    uint64_t first = 0, records = 0; // records: with the metric or without
    std::array<double, kParts> sums{};
    std::array<uint64_t, kParts> counts{};
    double lowest = 0, highest = 0, newest = 0;
    uint64_t above = 0;
  };
  struct Gate {
    Window window;
    std::optional<bool> told; // of this attempt: whether it passed
  };

  uint64_t last_step(size_t gate) const;
  void add(size_t gate, uint64_t step, double value);
  std::optional<double> value_of(size_t gate) const;
  bool is_lost(size_t gate) const; // whatever comes, the window fails
  void judge(size_t gate, uint64_t last_step, std::vector<Verdict>& verdicts);

  std::vector<spec::GateRule> rules_;
  std::vector<Gate> gates_;
  std::vector<std::optional<Verdict>> newest_;
};

// "1.099 (at least 0.5) over steps 11 to 60", "missing (at most 75) over steps 11 to 60".
std::string text_of(const spec::GateRule& rule, const Verdict& verdict);

} // namespace nsa::gates
