// Watches the health of training, from the records of rank 0: NSA gates that stay uniform or
// collapse, losses that jump, and a loss below the bigram entropy of the data. It reports gates
// once an attempt, the entropy once a run, and every spike. LossWatch detects divergence; the
// trainer handles losses that are not finite. Pure values.
#pragma once

#include "common/base/json.h"
#include "common/wire/rank_messages.h"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nsa::control {

// A layer whose mean gates add up to 1 (nsa.gate = "group_softmax").
struct LayerGates {
  double entropy = 0; // entropy of the mean gates, nats
  double largest = 0; // largest mean gate
};
// Gates by layer; empty if the record has no gates.
std::map<std::string, LayerGates> layer_gates(const wire::RankStep& step);

class HealthWatch {
public:
  struct Finding {
    wire::EventKind kind;
    std::string text;
    wire::Severity severity = wire::Severity::kWarning;
  };

  // `branches`: the number of branches that gates choose between.
  void begin_attempt(size_t branches);
  // H(token | previous token), nats; 0 if unknown.
  void know_data(double bigram_entropy_nats) { bigram_entropy_ = bigram_entropy_nats; }
  std::vector<Finding> add(const wire::RankStep& step);

private:
  // Size of the ring of losses that a spike is compared with.
  static constexpr size_t kLosses = 64;

  void look_at_gates(const wire::RankStep& step, std::vector<Finding>& findings);
  void look_at_loss(const wire::RankStep& step, std::vector<Finding>& findings);
  void look_at_entropy(const wire::RankStep& step, std::vector<Finding>& findings);

  size_t branches_ = 3;
  std::array<double, kLosses> losses_{}; // the newest losses, a ring
  uint64_t seen_ = 0, quiet_until_ = 0;  // counted in records
  bool uniform_told_ = false, collapse_told_ = false, below_entropy_told_ = false;
  double bigram_entropy_ = 0;
  std::map<std::string, int> collapsed_; // layer -> records in a row
  friend void to_json(nlohmann::json& json, const HealthWatch& watch);
  friend void from_json(const nlohmann::json& json, HealthWatch& watch);
};

} // namespace nsa::control
