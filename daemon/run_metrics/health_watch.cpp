#include "daemon/run_metrics/health_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace nsa::control {

namespace {

// New gates are nearly equal and need time to differentiate.
constexpr uint64_t kUniformAfterSteps = 1000;
constexpr double kUniformMargin = 1e-3; // nats below the entropy of equal gates
constexpr double kCollapsedGate = 0.95; // mean gate of one branch
constexpr int kCollapsedRecords = 5;    // in a row
constexpr size_t kFewestLosses = 32;    // too few losses before this for a median and its deviation
constexpr double kSpike = 8;            // robust standard deviations above the median
constexpr double kLeastNats = 0.2;      // a spike is also at least this far above the median

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string text(const char* format, auto... values) {
  char out[160];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

} // namespace

std::map<std::string, LayerGates> layer_gates(const wire::RankStep& step) {
  std::map<std::string, LayerGates> layers;
  std::map<std::string, double> sums;
  for (const auto& [key, gate] : step.gates) {
    if (!(gate >= 0 && gate <= 1)) continue;
    const std::string layer = key.substr(0, key.find('/'));
    LayerGates& of = layers[layer];
    sums[layer] += gate;
    of.largest = std::max(of.largest, gate);
    if (gate > 0) of.entropy -= gate * std::log(gate);
  }
  constexpr double kRounding = 0.02;
  std::erase_if(layers,
                [&](const auto& entry) { return std::abs(sums[entry.first] - 1) > kRounding; });
  return layers;
}

void HealthWatch::begin_attempt(size_t branches) {
  const bool told = below_entropy_told_;
  *this = {};
  below_entropy_told_ = told;
  branches_ = std::max<size_t>(branches, 1);
}

void HealthWatch::look_at_gates(const wire::RankStep& step, std::vector<Finding>& findings) {
  double lowest = INFINITY;
  for (const auto& [layer, gates] : layer_gates(step)) {
    lowest = std::min(lowest, gates.entropy);
    int& records = collapsed_[layer];
    records = gates.largest > kCollapsedGate ? records + 1 : 0;
    if (records < kCollapsedRecords || collapse_told_) continue;
    collapse_told_ = true;
    findings.push_back(
        {wire::EventKind::kGateCollapse,
         text("gates collapse: in layer %s one branch has a mean "
              "gate of %.3f at step %llu",
              layer.c_str(), gates.largest, static_cast<unsigned long long>(step.step))});
  }
  const double equal = std::log(static_cast<double>(branches_));
  if (uniform_told_ || step.step < kUniformAfterSteps || !std::isfinite(lowest) ||
      lowest < equal - kUniformMargin)
    return;
  uniform_told_ = true;
  findings.push_back({wire::EventKind::kGatesUniform,
                      text("gates stay uniform: entropy %.4f of at most %.4f in every layer at "
                           "step %llu, so no branch is chosen",
                           lowest, equal, static_cast<unsigned long long>(step.step))});
}

void HealthWatch::look_at_loss(const wire::RankStep& step, std::vector<Finding>& findings) {
  const size_t count = std::min<uint64_t>(seen_, kLosses);
  if (count >= kFewestLosses && seen_ >= quiet_until_) {
    std::vector<double> losses(losses_.begin(), losses_.begin() + static_cast<ptrdiff_t>(count));
    const double middle = median(losses);
    for (double& loss : losses)
      loss = std::abs(loss - middle);
    constexpr double kMadToSigma = 1.4826; // for a normal distribution
    const double sigma = kMadToSigma * median(std::move(losses));
    const double above = step.loss - middle;
    if (above > kSpike * sigma && above > kLeastNats) {
      quiet_until_ = seen_ + kFewestLosses; // one event for a spike that lasts
      findings.push_back({wire::EventKind::kLossSpike,
                          text("loss spike: %.3g at step %llu, the median before it is %.3g (%.1f "
                               "robust standard deviations)",
                               step.loss, static_cast<unsigned long long>(step.step), middle,
                               above / std::max(sigma, 1e-6))});
    }
  }
  losses_[seen_ % kLosses] = step.loss;
  ++seen_;
}

// Compares the mean of the newest losses, because one easy batch proves nothing.
void HealthWatch::look_at_entropy(const wire::RankStep& step, std::vector<Finding>& findings) {
  if (below_entropy_told_ || bigram_entropy_ <= 0 || seen_ < kLosses) return;
  const double mean = std::accumulate(losses_.begin(), losses_.end(), 0.0) / kLosses;
  if (mean >= bigram_entropy_) return;
  below_entropy_told_ = true;
  findings.push_back({wire::EventKind::kLossBelowEntropy,
                      text("loss %.3f at step %llu is below the bigram entropy of the data, %.3f: "
                           "the model uses more than the token before",
                           mean, static_cast<unsigned long long>(step.step), bigram_entropy_),
                      wire::Severity::kInfo});
}

std::vector<HealthWatch::Finding> HealthWatch::add(const wire::RankStep& step) {
  std::vector<Finding> findings;
  look_at_gates(step, findings);
  if (!std::isfinite(step.loss)) return findings;
  look_at_loss(step, findings);
  look_at_entropy(step, findings);
  return findings;
}

void to_json(nlohmann::json& json, const HealthWatch& w) {
  json = {w.branches_,      w.losses_,        w.seen_,      w.quiet_until_,
          w.uniform_told_,  w.collapse_told_, w.collapsed_, w.below_entropy_told_,
          w.bigram_entropy_};
}

void from_json(const nlohmann::json& json, HealthWatch& w) {
  w.branches_ = json.at(0).get<size_t>();
  w.losses_ = json.at(1).get<std::array<double, HealthWatch::kLosses>>();
  w.seen_ = json.at(2).get<uint64_t>();
  w.quiet_until_ = json.at(3).get<uint64_t>();
  w.uniform_told_ = json.at(4).get<bool>();
  w.collapse_told_ = json.at(5).get<bool>();
  w.collapsed_ = json.at(6).get<std::map<std::string, int>>();
  if (json.size() < 9) return; // an older nsad did not compare the loss with the entropy
  w.below_entropy_told_ = json.at(7).get<bool>();
  w.bigram_entropy_ = json.at(8).get<double>();
}

} // namespace nsa::control
