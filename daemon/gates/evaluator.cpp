#include "daemon/gates/evaluator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nsa::gates {

using spec::GateMetric;
using spec::GateOver;
using spec::GateRule;

namespace {

bool passes(const GateRule& rule, double value) {
  // A missing bound is NaN, so both comparisons are false.
  return !(value < rule.at_least) && !(value > rule.at_most);
}

// Identifies the rules, because the stored memory of other rules must not be used.
std::string digest_of(const std::vector<GateRule>& rules) {
  std::string text;
  for (GateRule rule : rules)
    for (const spec::Field& field : spec::gate_fields(rule))
      text += spec::to_toml(spec::get(field)) + ";";
  return text;
}

} // namespace

Evaluator::Evaluator(std::vector<GateRule> rules)
    : rules_(std::move(rules)), newest_(rules_.size()) {
  begin_attempt(1);
}

void Evaluator::begin_attempt(uint64_t step) {
  gates_.assign(rules_.size(), Gate{});
  for (size_t i = 0; i < rules_.size(); ++i)
    gates_[i].window.first = std::max(step, static_cast<uint64_t>(rules_[i].first_step));
}

uint64_t Evaluator::last_step(size_t gate) const {
  return gates_[gate].window.first + static_cast<uint64_t>(rules_[gate].window_steps) - 1;
}

void Evaluator::add(size_t gate, uint64_t step, double value) {
  Window& w = gates_[gate].window;
  const uint64_t count = std::accumulate(w.counts.begin(), w.counts.end(), uint64_t{0});
  const auto length = static_cast<uint64_t>(rules_[gate].window_steps);
  const size_t part = std::min<uint64_t>(kParts - 1, (step - w.first) * kParts / length);
  w.lowest = count == 0 ? value : std::min(w.lowest, value);
  w.highest = count == 0 ? value : std::max(w.highest, value);
  w.newest = value;
  w.sums[part] += value;
  ++w.counts[part];
  if (value > rules_[gate].threshold) ++w.above;
}

std::optional<double> Evaluator::value_of(size_t gate) const {
  const Window& w = gates_[gate].window;
  const uint64_t count = std::accumulate(w.counts.begin(), w.counts.end(), uint64_t{0});
  if (count == 0) return std::nullopt;
  const auto records = static_cast<double>(count);
  switch (rules_[gate].over) {
  case GateOver::kMean:
    return std::accumulate(w.sums.begin(), w.sums.end(), 0.0) / records;
  case GateOver::kMinimum:
    return w.lowest;
  case GateOver::kMaximum:
    return w.highest;
  case GateOver::kLast:
    return w.newest;
  case GateOver::kShareAbove:
    return static_cast<double>(w.above) / records;
  case GateOver::kGrowth:
    break;
  }
  size_t first = 0, last = kParts - 1;
  while (w.counts[first] == 0)
    ++first;
  while (w.counts[last] == 0)
    --last;
  const double before = w.sums[first] / static_cast<double>(w.counts[first]);
  const double after = w.sums[last] / static_cast<double>(w.counts[last]);
  if (first == last || before <= 0) return std::nullopt; // there is nothing to compare with
  return after / before - 1;
}

bool Evaluator::is_lost(size_t gate) const {
  const GateRule& rule = rules_[gate];
  const Window& w = gates_[gate].window;
  if (rule.over == GateOver::kMaximum) return w.highest > rule.at_most;
  if (rule.over == GateOver::kMinimum) return w.lowest < rule.at_least;
  return false;
}

void Evaluator::judge(size_t gate, uint64_t last, std::vector<Verdict>& verdicts) {
  Gate& g = gates_[gate];
  const std::optional<double> value = value_of(gate);
  const auto& counts = g.window.counts;
  const uint64_t count = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  // Every record had the metric, but they give no value. So a part of the window lacks its records,
  // for example because nsad was not running.
  if (!value && count == g.window.records) {
    g.window = {};
    g.window.first = last + 1;
    return;
  }
  Verdict verdict;
  verdict.gate = gate;
  verdict.value = value;
  verdict.passed = verdict.value && passes(rules_[gate], *verdict.value);
  verdict.first_step = g.window.first;
  verdict.last_step = last;
  verdict.changed = g.told != verdict.passed;
  g.told = verdict.passed;
  g.window = {};
  g.window.first = last + 1;
  newest_[gate] = verdict;
  verdicts.push_back(verdict);
}

std::vector<Verdict> Evaluator::observe(uint64_t step, const Figures& figures) {
  std::vector<Verdict> verdicts;
  for (size_t i = 0; i < rules_.size(); ++i) {
    const GateRule& rule = rules_[i];
    if (figures[GateMetric::kHeldoutLoss] && rule.metric != GateMetric::kHeldoutLoss)
      continue; // an evaluation's record holds no other metric
    Window& window = gates_[i].window;
    if (step < window.first) continue; // the window has not begun, or was judged already
    if (step > last_step(i)) { // The record of the window's last step was lost, or no evaluation
                               // came.
      judge(i, last_step(i), verdicts);
      if (step > last_step(i)) window.first = step; // whole windows were lost, too
    }
    if (!figures.is_not_yet_known(rule.metric)) ++window.records;
    const std::optional<double>& value = figures[rule.metric];
    const bool here = value && std::isfinite(*value);
    if (here) add(i, step, *value);
    // An evaluation's record comes after its step's record, so a window on the held-out loss waits
    // for it.
    const bool over = step == last_step(i) && (here || rule.metric != GateMetric::kHeldoutLoss);
    if (over || (here && is_lost(i))) judge(i, step, verdicts);
  }
  return verdicts;
}

std::vector<Verdict> Evaluator::finish(uint64_t step) {
  std::vector<Verdict> verdicts;
  for (size_t i = 0; i < rules_.size(); ++i)
    if (step >= last_step(i)) judge(i, last_step(i), verdicts);
  return verdicts;
}

nlohmann::json Evaluator::memory() const {
  if (rules_.empty()) return nullptr;
  nlohmann::json gates = nlohmann::json::array();
  for (size_t i = 0; i < gates_.size(); ++i) {
    const Window& w = gates_[i].window;
    nlohmann::json gate = {
        {"window", {w.first, w.sums, w.counts, w.lowest, w.highest, w.newest, w.above, w.records}},
        {"told", nullptr},
        {"newest", nullptr}};
    if (gates_[i].told) gate["told"] = *gates_[i].told;
    if (const auto& verdict = newest_[i]) {
      gate["newest"] = {verdict->passed, verdict->first_step, verdict->last_step, nullptr};
      if (verdict->value) gate["newest"][3] = *verdict->value;
    }
    gates.push_back(std::move(gate));
  }
  return {{"rules", digest_of(rules_)}, {"gates", std::move(gates)}};
}

void Evaluator::recall(const nlohmann::json& memory) {
  if (!memory.is_object() || memory.at("rules") != digest_of(rules_)) return;
  const nlohmann::json& gates = memory.at("gates");
  if (gates.size() != rules_.size()) return;
  for (size_t i = 0; i < gates_.size(); ++i) {
    const nlohmann::json& gate = gates.at(i);
    const nlohmann::json& window = gate.at("window");
    Window& w = gates_[i].window;
    w.first = window.at(0).get<uint64_t>();
    w.sums = window.at(1).get<std::array<double, kParts>>();
    w.counts = window.at(2).get<std::array<uint64_t, kParts>>();
    w.lowest = window.at(3).get<double>();
    w.highest = window.at(4).get<double>();
    w.newest = window.at(5).get<double>();
    w.above = window.at(6).get<uint64_t>();
    w.records = window.at(7).get<uint64_t>();
    if (gate.at("told").is_boolean()) gates_[i].told = gate.at("told").get<bool>();
    const nlohmann::json& newest = gate.at("newest");
    if (!newest.is_array()) continue;
    Verdict& verdict = newest_[i].emplace();
    verdict.gate = i;
    verdict.passed = newest.at(0).get<bool>();
    verdict.first_step = newest.at(1).get<uint64_t>();
    verdict.last_step = newest.at(2).get<uint64_t>();
    if (newest.at(3).is_number()) verdict.value = newest.at(3).get<double>();
  }
}

std::string text_of(const GateRule& rule, const Verdict& verdict) {
  return (verdict.value ? spec::bound_number(*verdict.value) : std::string("missing")) + " (" +
         spec::bound_text(rule) + ") over steps " + std::to_string(verdict.first_step) + " to " +
         std::to_string(verdict.last_step);
}

} // namespace nsa::gates
