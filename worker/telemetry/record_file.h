// A file to which one thread appends records. A disk that is full tears and loses none: what it
// does not take waits in memory, up to 4 MiB, and is written before the next record. Only beyond
// that are records lost, whole ones, and counted. A process that is killed meanwhile leaves its
// last record torn. Failures are logged once each time they begin, and never passed on: metrics are
// not worth a run.
#pragma once

#include "common/base/unique_fd.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::telemetry {

class RecordFile {
public:
  RecordFile() = default;
  // `name` is for the log. The file is opened with O_APPEND.
  RecordFile(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}
  // The first record in a row that cannot be written makes one warning.
  void append(std::string_view record);
  uint64_t lost() const { return lost_; } // records
  bool waits() const { return !waiting_.empty(); }

private:
  int write_waiting(); // 0, or an errno
  UniqueFd fd_;
  std::string name_, waiting_;
  bool failing_ = false;
  uint64_t lost_ = 0;
};

} // namespace nsa::telemetry
