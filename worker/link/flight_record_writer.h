// Answers the shim's requests for the flight recorder's record, which is part of a hang's evidence:
// on a thread of its own, because the training thread may hang, and because asking GPU events for
// their state may block behind a stuck driver, which the link's thread must not.
#pragma once

#include "common/base/ids.h"
#include "worker/link/link.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace nsa::train {

class FlightRecordWriter {
public:
  // `record` gives JSON text and is called on the writer's thread. The link must outlive this.
  FlightRecordWriter(link::Link& link, Rank rank, std::function<std::string()> record);
  ~FlightRecordWriter(); // waits for a record under way

private:
  void run();

  link::Link& link_;
  const Rank rank_;
  const std::function<std::string()> record_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string wanted_; // the folder of the newest request that has no answer; empty: none
  bool closing_ = false;
  std::thread thread_;
};

} // namespace nsa::train
