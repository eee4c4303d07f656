#include "daemon/shim/rank_log.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::shim {

RankLog::RankLog(std::string path, uint64_t max_bytes, int files)
    : path_(std::move(path)), max_bytes_(std::max<uint64_t>(max_bytes, 1)),
      files_(std::max(files, 1)) {}

void RankLog::feed(Stream stream, std::string_view bytes, WallTime now) {
  lines_.clear();
  (stream == Stream::kStdout ? out_ : err_).feed(bytes, now, lines_);
  write(lines_, now);
}

void RankLog::skip(uint64_t bytes, const std::string& why, WallTime now) {
  flush_partial(now); // later bytes do not continue a line that is open now
  unsaid_ += bytes;
  unsaid_why_ = why;
}

void RankLog::flush_partial(WallTime now) {
  lines_.clear();
  out_.flush(now, lines_);
  err_.flush(now, lines_);
  write(lines_, now);
}

// Writes as many whole lines at a time as fit, so that every file holds whole lines.
void RankLog::write(std::string_view lines, WallTime now) {
  if (lines.empty()) return;
  open_file(); // needed for the size; if it fails, append() fails too and counts the loss
  if (unsaid_ > 0) {
    std::string notice;
    CriFormatter(Stream::kStderr)
        .feed("[nsa-shim: " + std::to_string(unsaid_) +
                  " bytes of log were dropped: " + unsaid_why_ + "]\n",
              now, notice);
    // The notice is retried only together with the lines after it, never in a loop of its own.
    const Dropped before = dropped_;
    const uint64_t unsaid = unsaid_;
    if (append(notice)) {
      unsaid_ = 0;
    } else {
      dropped_ = before; // the notice is not output of the rank
      unsaid_ = unsaid;
    }
  }
  while (!lines.empty()) {
    if (size_ >= max_bytes_) rotate();
    const uint64_t room = max_bytes_ - std::min(size_, max_bytes_);
    size_t take = lines.size();
    if (take > room) {
      const size_t end = room == 0 ? std::string_view::npos : lines.rfind('\n', room - 1);
      if (end != std::string_view::npos) {
        take = end + 1;
      } else if (size_ > 0) { // not one line fits, so use the next file
        rotate();
        continue;
      } else { // a line longer than the limit gets a file of its own
        take = lines.find('\n') + 1;
      }
    }
    append(lines.substr(0, take));
    lines.remove_prefix(take);
  }
}

bool RankLog::open_file() {
  if (file_) return true;
  // O_NOFOLLOW: the job must not redirect the log with a symbolic link (as in CVE-2026-6959).
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640));
  struct stat info{};
  if (!file_ || ::fstat(file_.get(), &info) != 0) return false;
  size_ = static_cast<uint64_t>(info.st_size);
  return true;
}

bool RankLog::append(std::string_view lines) {
  if (!open_file()) {
    lose(lines, errno);
    return false;
  }
  size_t done = 0;
  int error = 0;
  while (done < lines.size()) {
    const ssize_t put = ::write(file_.get(), lines.data() + done, lines.size() - done);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (put < 0 && errno != EINTR) {
      error = errno;
      break;
    }
  }
  if (done == lines.size()) {
    size_ += done;
    return true;
  }
  // Removes the part of a line that was written.
  const size_t end = done == 0 ? std::string_view::npos : lines.rfind('\n', done - 1);
  const size_t whole = end == std::string_view::npos ? 0 : end + 1;
  if (whole < done && ::ftruncate(file_.get(), static_cast<off_t>(size_ + whole)) != 0)
    file_.reset(); // reopening measures the size again
  size_ += whole;
  lose(lines.substr(whole), error);
  return false;
}

void RankLog::lose(std::string_view lines, int error) {
  const size_t bytes = cri_payload_bytes(lines);
  dropped_.bytes += bytes;
  dropped_.why = std::strerror(error);
  unsaid_ += bytes;
  unsaid_why_ = dropped_.why;
}

void RankLog::rotate() {
  file_.reset();
  size_ = 0;
  if (files_ == 1) {
    ::unlink(path_.c_str());
    return;
  }
  for (int i = files_ - 1; i > 0; --i) {
    const std::string older = path_ + "." + std::to_string(i);
    const std::string newer = i == 1 ? path_ : path_ + "." + std::to_string(i - 1);
    ::rename(newer.c_str(), older.c_str()); // ENOENT: there are not that many files yet
  }
}

RankLog::Dropped RankLog::take_dropped() {
  Dropped taken = std::move(dropped_);
  dropped_ = {};
  return taken;
}

} // namespace nsa::shim
