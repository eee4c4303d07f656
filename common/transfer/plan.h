// Decides which pieces of a folder's files to request next, and how many may be in flight. Bytes
// arrive in order, so the length of an incomplete file is the offset at which to resume. It uses no
// clock and no files.
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
  std::string name; // within the folder, without separators
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128, 32 hex digits
  bool operator==(const File&) const = default;
};
void to_json(nlohmann::json& json, const File& file);
void from_json(const nlohmann::json& json, File& file);

uint64_t total_bytes(const std::vector<File>& files);
// Error: kCorrupt if a name is repeated or leads out of the folder.
Status check(const std::vector<File>& files);

struct Range {
  uint64_t offset = 0;
  uint32_t bytes = 0;
  bool operator==(const Range&) const = default;
};

// How many pieces may be in flight. The number doubles while they arrive quickly, and halves when
// they are slow. Other frames of the same link, heartbeats among them, wait behind them.
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

// One file, from the end of its incomplete copy.
class FilePlan {
public:
  FilePlan(uint64_t bytes, uint64_t from);
  // Returns the next piece to request; nullopt if all are requested, or `limit` of them are in
  // flight.
  std::optional<Range> next(size_t limit);
  // Error: kCorrupt if it is not the expected piece.
  Status arrived(Range piece);
  bool complete() const { return arrived_ == bytes_; }
  uint64_t here() const { return arrived_; } // bytes from the file's beginning

private:
  uint64_t bytes_, arrived_, asked_;
  std::deque<Range> under_way_;
};

} // namespace nsa::transfer
