// Answers the shim's requests for the flight record, which is evidence of a hang. It has its own
// thread for two reasons. The training thread may hang. Querying GPU events may block in a stuck
// driver, and the link's thread must not block.
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
  // `record` returns JSON and is called on the writer's thread. The link must outlive this object.
  FlightRecordWriter(link::Link& link, Rank rank, std::function<std::string()> record);
  ~FlightRecordWriter(); // waits for a record that is being written

private:
  void run();

  link::Link& link_;
  const Rank rank_;
  const std::function<std::string()> record_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string wanted_; // folder of the newest unanswered request; empty if there is none
  bool closing_ = false;
  std::thread thread_;
};

} // namespace nsa::train
