// Indexes of curves (common/curves) that nsad makes itself, for long runs of older builds, whose
// ranks made none. A separate low-priority thread makes each index once. nsad keeps them in its own
// folder, because the run's folder belongs to its owner.
//
//   <folder>/<run>.jsonl    removed when nsad makes another index after the run's folder is gone
//
// Any thread may use it. The destructor stops the work and discards an unfinished index.
#pragma once

#include "common/base/file.h"
#include "common/curves/curve_index.h"

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace nsa::api {

class CurveIndexes {
public:
  explicit CurveIndexes(std::filesystem::path folder);
  ~CurveIndexes();
  CurveIndexes(const CurveIndexes&) = delete;
  CurveIndexes& operator=(const CurveIndexes&) = delete;

  // Returns the index of the metrics.jsonl at `path`, and an error if it does not exist yet.
  Result<std::string> read(const std::filesystem::path& path) const;
  // Makes the index in the background, once in the lifetime of this nsad. It does not repeat a
  // failed try, and only the next nsad indexes a file that has grown.
  void want(const std::filesystem::path& path, const FileOpener& open);
  // Returns the finished share of the index, from 0 to 1; empty if it is not being made.
  std::optional<double> coming(const std::filesystem::path& path) const;
  void wait(); // waits until no index is being made; for tests

private:
  struct Wanted {
    std::filesystem::path path;
    FileOpener open;
  };
  std::filesystem::path place_of(const std::filesystem::path& path) const;
  void work(const std::stop_token& stop);
  Status make(const Wanted& wanted, const std::stop_token& stop);
  void remove_orphans(const std::filesystem::path& runs) const;

  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::set<std::filesystem::path> known_;          // paths that were requested before
  std::map<std::filesystem::path, double> coming_; // those of `known_` that are not finished
  std::deque<Wanted> wanted_;
  bool busy_ = false;
  std::jthread thread_; // starts with the first request
};

} // namespace nsa::api
