#include "daemon/api/curve_indexes.h"

#include "common/base/log.h"
#include "common/curves/file_indexer.h"
#include "daemon/api/metric_points.h"

#include <algorithm>
#include <sys/resource.h>
#include <sys/stat.h>

namespace nsa::api {

namespace {

constexpr size_t kMostWanted = 64;
constexpr int kNice = 15; // low priority, because ranks train on the same cores

} // namespace

CurveIndexes::CurveIndexes(std::filesystem::path folder) : folder_(std::move(folder)) {}

CurveIndexes::~CurveIndexes() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

std::filesystem::path CurveIndexes::place_of(const std::filesystem::path& path) const {
  return folder_ / (path.parent_path().filename().string() + ".jsonl");
}

Result<std::string> CurveIndexes::read(const std::filesystem::path& path) const {
  return read_file(place_of(path), kMostIndexBytes);
}

void CurveIndexes::want(const std::filesystem::path& path, const FileOpener& open) {
  const std::scoped_lock lock(mutex_);
  if (wanted_.size() >= kMostWanted || !known_.insert(path).second) return;
  wanted_.push_back({path, open});
  coming_[path] = 0;
  if (!thread_.joinable())
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  changed_.notify_all();
}

std::optional<double> CurveIndexes::coming(const std::filesystem::path& path) const {
  const std::scoped_lock lock(mutex_);
  const auto found = coming_.find(path);
  return found == coming_.end() ? std::nullopt : std::optional(found->second);
}

void CurveIndexes::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return wanted_.empty() && !busy_; });
}

void CurveIndexes::work(const std::stop_token& stop) {
  (void)::setpriority(PRIO_PROCESS, 0, kNice); // applies to this thread only
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !wanted_.empty(); })) {
    const Wanted next = std::move(wanted_.front());
    wanted_.pop_front();
    busy_ = true;
    lock.unlock();
    if (const Status made = make(next, stop); !made && !stop.stop_requested())
      log::warning("api", "no index of curves: " + made.error().what,
                   {{"records", next.path.string()}});
    lock.lock();
    busy_ = false;
    coming_.erase(next.path);
    changed_.notify_all();
  }
}

Status CurveIndexes::make(const Wanted& wanted, const std::stop_token& stop) {
  remove_orphans(wanted.path.parent_path().parent_path());
  NSA_TRY(make_folder(folder_, 0700));
  NSA_TRY_ASSIGN(const UniqueFd file,
                 wanted.open ? wanted.open(wanted.path) : open_regular_file(wanted.path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return fail_errno("cannot look at its records");
  std::string index;
  const double segments =
      static_cast<double>(status.st_size) / static_cast<double>(curves::kSegmentBytes);
  const auto end =
      curves::index_file(file.get(), 0, status.st_size, stop, [&](const std::string& lines) {
        index += lines;
        const std::scoped_lock lock(mutex_);
        double& made = coming_[wanted.path];
        made = std::min(1.0, made + 1 / segments);
        return index.size() <= kMostIndexBytes;
      });
  if (!end) return fail(ErrorCode::kInvalidArgument, "its records have none", "");
  // The index can be made again, so this does not wait for the disk.
  return write_file_atomic(place_of(wanted.path), index, 0600, Survives::kProcessCrash);
}

void CurveIndexes::remove_orphans(const std::filesystem::path& runs) const {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, failed)) {
    std::error_code unknown;
    const bool is_there = std::filesystem::exists(runs / entry.path().stem(), unknown);
    if (!is_there && !unknown) std::filesystem::remove(entry.path(), unknown);
  }
}

} // namespace nsa::api
