// How long the parts of a rank's start took, from the process's birth to its first step's result.
#pragma once

#include "common/base/clock.h"

#include <map>
#include <string>

namespace nsa::train {

class StartUpTimes {
public:
  // What lies behind us already (loading of the program and its libraries) is the stage "exec".
  explicit StartUpTimes(double seconds_since_exec) { seconds_["exec"] = seconds_since_exec; }
  // `stage` ends now; it began when the one before ended.
  void passed(const std::string& stage) {
    const MonotonicTime now = MonotonicTime::now();
    seconds_[stage] += to_seconds(now - since_);
    since_ = now;
  }
  const std::map<std::string, double>& seconds() const { return seconds_; } // by stage

private:
  std::map<std::string, double> seconds_;
  MonotonicTime since_ = MonotonicTime::now();
};

} // namespace nsa::train
