#include "worker/telemetry/record_file.h"

#include "common/base/log.h"

#include <cerrno>
#include <unistd.h>

namespace nsa::telemetry {

Status RecordFile::write_waiting() {
  if (!fd_) {
    NSA_TRY_ASSIGN(fd_, open_());
  }
  size_t done = 0;
  Status status;
  while (done < waiting_.size() && status) {
    const ssize_t put = ::write(fd_.get(), waiting_.data() + done, waiting_.size() - done);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (put == 0 || errno != EINTR) {
      if (put == 0) errno = ENOSPC;
      status = fail_errno("cannot write");
    }
  }
  waiting_.erase(0, done);
  return status;
}

bool RecordFile::append(std::string_view record) {
  constexpr size_t kMaxWaiting = size_t{4} << 20;
  Status status = write_waiting();
  // The file may have part of the first waiting record, so the newest one is dropped.
  const bool fits = waiting_.size() + record.size() <= kMaxWaiting;
  if (fits) waiting_ += record;
  if (!fits) ++lost_;
  if (status) status = write_waiting();
  if (!status && !failing_)
    log::warning("metrics",
                 name_ + ": " + status.error().what +
                     "; records wait in memory, and training continues",
                 {{"next", status.error().code == ErrorCode::kExhausted ? "free disk space"
                                                                        : "make it writable"}});
  if (status && failing_)
    log::info("metrics", name_ + " is written again", {{"records_lost", std::to_string(lost_)}});
  failing_ = !status;
  return fits;
}

} // namespace nsa::telemetry
