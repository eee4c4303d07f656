// Tells when the training loss of a run diverges from its lowest value. It compares a moving mean,
// so one bad batch does not count. Losses that are not finite never come here: the trainer handles
// them (train.non_finite). Pure values.
#pragma once

#include "common/base/json.h"

#include <cstdint>
#include <string>

namespace nsa::control {

class LossWatch {
public:
  void add(double loss); // of the newest step that was told
  // More than half as much again, and 1 nat, above the lowest mean so far. While the run goes on it
  // must have lasted; of a run that has ended the newest mean counts.
  bool diverged(bool ended) const;
  std::string text() const; // "loss diverged: 5.8 -> 158"

private:
  bool is_far() const;

  double mean_ = 0, lowest_ = 0, newest_ = 0;
  uint64_t seen_ = 0, far_ = 0; // far_: in a row
  friend void to_json(nlohmann::json& json, const LossWatch& watch);
  friend void from_json(const nlohmann::json& json, LossWatch& watch);
};

} // namespace nsa::control
