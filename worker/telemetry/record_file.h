// A file to which one thread appends records. A full disk neither cuts nor loses a record. Records
// that do not fit wait in memory, up to 4 MiB, and are written before the next one. Only above that
// limit are whole records dropped, and counted. If the process is killed, the last record may be
// cut. A file that cannot be opened is treated alike: each record tries again. Each failure is
// logged once when it begins and is never returned, because metrics must not fail a run.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace nsa::telemetry {

class RecordFile {
public:
  RecordFile() = default;
  using Opener = std::function<Result<UniqueFd>()>; // opens with O_APPEND
  // `name` is for the log. append() opens the file, if needed again and again until this succeeds.
  RecordFile(Opener open, std::string name) : open_(std::move(open)), name_(std::move(name)) {}
  // Logs one warning for the first of several records that cannot be written. Returns false if the
  // record is lost.
  bool append(std::string_view record);
  void flush() { append({}); }            // tries again to write what waits
  uint64_t lost() const { return lost_; } // records
  bool waits() const { return !waiting_.empty(); }

private:
  Status write_waiting();
  Opener open_;
  UniqueFd fd_;
  std::string name_, waiting_;
  bool failing_ = false;
  uint64_t lost_ = 0;
};

} // namespace nsa::telemetry
