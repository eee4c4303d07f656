// Seconds of each stage of a rank's start, from the start of its process to the result of its first
// step.
#pragma once

#include "common/base/clock.h"

#include <map>
#include <string>

namespace nsa::train {

class StartUpTimes {
public:
  // The stage "exec" is the time before this object exists: loading the program and its libraries.
  explicit StartUpTimes(double seconds_since_exec) { seconds_["exec"] = seconds_since_exec; }
  // Ends `stage`, which began when the previous stage ended.
  void passed(const std::string& stage) {
    const MonotonicTime now = MonotonicTime::now();
    seconds_[stage] += to_seconds(now - since_);
    since_ = now;
  }
  const std::map<std::string, double>& seconds() const { return seconds_; } // keyed by stage

private:
  std::map<std::string, double> seconds_;
  MonotonicTime since_ = MonotonicTime::now();
};

} // namespace nsa::train
