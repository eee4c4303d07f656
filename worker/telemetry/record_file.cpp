#include "worker/telemetry/record_file.h"

#include "common/base/log.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

namespace nsa::telemetry {

int RecordFile::write_waiting() {
  size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t put = ::write(fd_.get(), waiting_.data() + done, waiting_.size() - done);
    if (put > 0)
      done += static_cast<size_t>(put);
    else if (put == 0 || errno != EINTR)
      error = put == 0 ? ENOSPC : errno;
  }
  waiting_.erase(0, done);
  return error;
}

bool RecordFile::append(std::string_view record) {
  constexpr size_t kMaxWaiting = size_t{4} << 20;
  int error = write_waiting();
  // The file may have part of the first waiting record, so the newest one is dropped.
  const bool fits = waiting_.size() + record.size() <= kMaxWaiting;
  if (fits) waiting_ += record;
  if (!fits) ++lost_;
  if (error == 0) error = write_waiting();
  if (error != 0 && !failing_)
    log::warning("metrics", name_ + " cannot be written: " + std::strerror(error) +
                                "; records wait in memory, and training continues");
  if (error == 0 && failing_)
    log::info("metrics", name_ + " is written again", {{"records_lost", std::to_string(lost_)}});
  failing_ = error != 0;
  return fits;
}

} // namespace nsa::telemetry
