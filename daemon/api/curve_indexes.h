// Indexes of curves (common/curves) that nsad makes itself, for long runs whose ranks made none:
// those of older builds. Each is made once, on a thread of its own with little priority, and kept
// in a folder of nsad's, since the run's folder is its owner's.
//
//   <folder>/<run>.jsonl    taken away once the run's folder is gone, when another one is made
//
// Any thread. The destructor stops the work; what was half made is thrown away.
#pragma once

#include "common/base/file.h"
#include "common/curves/curve_index.h"

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
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

  // The index of the metrics.jsonl at `path`; an error where there is none yet.
  Result<std::string> read(const std::filesystem::path& path) const;
  // Makes it in the background. Once an nsad: what failed is not tried again, and a file that grows
  // is indexed again only by the next nsad.
  void want(const std::filesystem::path& path, const FileOpener& open);
  void wait(); // until nothing is being made; for tests

private:
  struct Wanted {
    std::filesystem::path path;
    FileOpener open;
  };
  std::filesystem::path place_of(const std::filesystem::path& path) const;
  void work(const std::stop_token& stop);
  Status make(const Wanted& wanted, const std::stop_token& stop) const;
  void remove_orphans(const std::filesystem::path& runs) const;

  const std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::set<std::filesystem::path> known_; // asked for before
  std::deque<Wanted> wanted_;
  bool busy_ = false;
  std::jthread thread_; // begun with the first that is wanted
};

} // namespace nsa::api
