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
  void add(double loss); // the loss of the newest reported step
  // The mean is more than 1.5 times, and more than 1 nat above, the lowest mean so far. In an open
  // run this must have lasted five records. In an ended run the newest mean decides.
  bool diverged(bool ended) const;
  std::string text() const; // "loss diverged: 5.8 -> 158"

private:
  bool is_far() const;

  double mean_ = 0, lowest_ = 0, newest_ = 0;
  uint64_t seen_ = 0, far_ = 0; // far_: records in a row
  friend void to_json(nlohmann::json& json, const LossWatch& watch);
  friend void from_json(const nlohmann::json& json, LossWatch& watch);
};

} // namespace nsa::control
