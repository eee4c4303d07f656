// What of a folder's files is still to come, in which pieces, and how many of them are under way at
// a time. Bytes come in order, so the length of an unfinished file is the point to resume at. Pure:
// no clock, no file.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/result.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace nsa::transfer {

inline constexpr uint32_t kPieceBytes = 128 * 1024;

struct File {
  std::string name; // within the folder, no separators
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128, 32 hex digits
  bool operator==(const File&) const = default;
};
void to_json(nlohmann::json& json, const File& file);
void from_json(const nlohmann::json& json, File& file);

uint64_t total_bytes(const std::vector<File>& files);
// kCorrupt: a name twice, or one that leads out of the folder.
Status check(const std::vector<File>& files);

struct Range {
  uint64_t offset = 0;
  uint32_t bytes = 0;
  bool operator==(const Range&) const = default;
};

// How many pieces may be under way. It doubles while they come quickly, and halves when they are
// slow: other frames of the same link, heartbeats among them, wait behind them.
class Pace {
public:
  static constexpr size_t kMost = 16;
  static constexpr Duration kQuick = std::chrono::milliseconds(250);
  static constexpr Duration kSlow = std::chrono::seconds(1);

  size_t limit() const { return limit_; }
  void arrived(Duration took);

private:
  size_t limit_ = 1;
};

// One file, from the point where its unfinished copy ends.
class FilePlan {
public:
  FilePlan(uint64_t bytes, uint64_t from);
  // The next piece to ask for; nothing when all are asked for, or `limit` of them are under way.
  std::optional<Range> next(size_t limit);
  // kCorrupt: it is not the piece that is due.
  Status arrived(Range piece);
  bool complete() const { return arrived_ == bytes_; }
  uint64_t here() const { return arrived_; } // bytes from the file's beginning

private:
  uint64_t bytes_, arrived_, asked_;
  std::deque<Range> under_way_;
};

} // namespace nsa::transfer
