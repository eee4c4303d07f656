// Keeps the index of curves (common/curves/curve_index.h) beside a growing metrics.jsonl. A
// separate thread indexes records that an earlier attempt left without an index. A failure is
// logged once, and the index ends there, because it only speeds up drawing.
//
// Only one thread may call add(). The destructor stops the indexing thread.
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
  // `metrics` already has `size` bytes; add() is for records after those.
  CurveIndexWriter(std::filesystem::path metrics, int64_t size);
  ~CurveIndexWriter();
  CurveIndexWriter(const CurveIndexWriter&) = delete;
  CurveIndexWriter& operator=(const CurveIndexWriter&) = delete;

  // Adds a record that was appended, and its line including the newline.
  void add(const nlohmann::json& record, std::string_view line);

private:
  void catch_up(const std::stop_token& stop);
  int64_t open_index(int metrics);
  void put(const std::string& lines);   // appends after the indexed part
  void write(const std::string& lines); // the caller holds mutex_

  const std::filesystem::path metrics_;
  const int64_t size_;
  curves::SegmentBuilder segment_;
  curves::CheckedTail tail_; // checksum of segment_

  std::mutex mutex_;
  UniqueFd index_;
  bool caught_up_ = false, failed_ = false;
  std::string waiting_; // lines that wait until the other thread has caught up
  std::jthread thread_;
};

} // namespace nsa::train
