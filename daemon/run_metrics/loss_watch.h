// Whether the training loss of a run has left the low that it had reached. It is judged by a moving
// mean, so that one bad batch is no verdict. Losses that are not finite are the trainer's to judge
// (train.non_finite), and never come here. Pure values.
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
