#include "common/transfer/plan.h"

#include <algorithm>
#include <set>

namespace nsa::transfer {

namespace {
constexpr size_t kChecksumDigits = 32;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}
} // namespace

void to_json(nlohmann::json& json, const File& file) {
  json = {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}};
}

void from_json(const nlohmann::json& json, File& file) {
  json.at("name").get_to(file.name);
  json.at("bytes").get_to(file.bytes);
  json.at("checksum").get_to(file.checksum);
}

uint64_t total_bytes(const std::vector<File>& files) {
  uint64_t total = 0;
  for (const File& file : files)
    total += file.bytes;
  return total;
}

Status check(const std::vector<File>& files) {
  std::set<std::string> names;
  for (const File& file : files) {
    if (!is_plain_name(file.name))
      return fail(ErrorCode::kCorrupt, "a list of files has a name that leads out of its folder");
    if (file.checksum.size() != kChecksumDigits)
      return fail(ErrorCode::kCorrupt, "a list of files has no checksum of " + file.name);
    if (!names.insert(file.name).second)
      return fail(ErrorCode::kCorrupt, "a list of files has " + file.name + " twice");
  }
  return {};
}

void Pace::arrived(Duration took) {
  if (took < kQuick) limit_ = std::min(limit_ * 2, kMost);
  if (took > kSlow) limit_ = std::max<size_t>(limit_ / 2, 1);
}

FilePlan::FilePlan(uint64_t bytes, uint64_t from)
    : bytes_(bytes), arrived_(std::min(from, bytes)), asked_(arrived_) {}

std::optional<Range> FilePlan::next(size_t limit) {
  if (asked_ == bytes_ || under_way_.size() >= limit) return std::nullopt;
  const Range piece{asked_,
                    static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, bytes_ - asked_))};
  asked_ += piece.bytes;
  under_way_.push_back(piece);
  return piece;
}

Status FilePlan::arrived(Range piece) {
  if (under_way_.empty() || under_way_.front() != piece)
    return fail(ErrorCode::kCorrupt, "a piece of a file came that was not due");
  under_way_.pop_front();
  arrived_ += piece.bytes;
  return {};
}

} // namespace nsa::transfer
