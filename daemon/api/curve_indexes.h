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

  // The index of the metrics.jsonl at `path`; an error where there is none yet.
  Result<std::string> read(const std::filesystem::path& path) const;
  // Makes it in the background. Once an nsad: what failed is not tried again, and a file that grows
  // is indexed again only by the next nsad.
  void want(const std::filesystem::path& path, const FileOpener& open);
  // How much of it is made, from 0 to 1; nothing where none is wanted.
  std::optional<double> coming(const std::filesystem::path& path) const;
  void wait(); // until nothing is being made; for tests

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
  std::set<std::filesystem::path> known_;          // asked for before
  std::map<std::filesystem::path, double> coming_; // of them those that are not made yet
  std::deque<Wanted> wanted_;
  bool busy_ = false;
  std::jthread thread_; // begun with the first that is wanted
};

} // namespace nsa::api
