// A file to which one thread appends records. A full disk neither cuts nor loses a record. Records
// that do not fit wait in memory, up to 4 MiB, and are written before the next one. Only above that
// limit are whole records dropped, and counted. If the process is killed, the last record may be
// cut. Each failure is logged once when it begins and is never returned, because metrics must not
// fail a run.
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
  // Logs one warning for the first of several records that cannot be written. Returns false if the
  // record is lost.
  bool append(std::string_view record);
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
