// Keeps the index of curves (common/curves/curve_index.h) beside a metrics.jsonl as that grows.
// What an earlier attempt left without an index is indexed by a thread of its own, meanwhile. A
// failure is logged once, and the index ends there: it is only a help for who draws curves.
//
// One thread adds. The destructor stops the other one.
#pragma once

#include "common/base/unique_fd.h"
#include "common/curves/file_indexer.h"

#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

namespace nsa::train {

class CurveIndexWriter {
public:
  // `metrics` has `size` bytes that were there before; add() is for those behind.
  CurveIndexWriter(std::filesystem::path metrics, int64_t size);
  ~CurveIndexWriter();
  CurveIndexWriter(const CurveIndexWriter&) = delete;
  CurveIndexWriter& operator=(const CurveIndexWriter&) = delete;

  // A record that was appended, and its line with the end.
  void add(const nlohmann::json& record, std::string_view line);

private:
  void catch_up(const std::stop_token& stop);
  int64_t open_index(int metrics);
  void put(const std::string& lines);   // behind what caught up
  void write(const std::string& lines); // under the lock

  const std::filesystem::path metrics_;
  const int64_t size_;
  curves::SegmentBuilder segment_;
  curves::CheckedTail tail_; // of segment_

  std::mutex mutex_;
  UniqueFd index_;
  bool caught_up_ = false, failed_ = false;
  std::string waiting_; // until it has
  std::jthread thread_;
};

} // namespace nsa::train
