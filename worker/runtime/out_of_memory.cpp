#include "worker/runtime/out_of_memory.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace nsa::runtime {

namespace {

constexpr size_t kLines = 32, kInText = 3;
constexpr size_t kLargestFile = 64 << 10;

nlohmann::json report_of(const OutOfMemory& held) {
  std::map<uint64_t, uint64_t> blocks_of_size;
  for (const uint64_t bytes : held.live_blocks)
    ++blocks_of_size[bytes];
  std::vector<std::pair<uint64_t, uint64_t>> sizes(blocks_of_size.begin(), blocks_of_size.end());
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
    return a.first * a.second > b.first * b.second;
  });
  nlohmann::json lines = nlohmann::json::array();
  for (size_t i = 0; i < std::min(sizes.size(), kLines); ++i)
    lines.push_back({{"bytes", sizes[i].first}, {"blocks", sizes[i].second}});
  const auto live = std::accumulate(held.live_blocks.begin(), held.live_blocks.end(), uint64_t{0});
  return {{"asked_bytes", held.asked_bytes},
          {"device_bytes", held.device_bytes},
          {"free_bytes", held.free_bytes},
          {"reserved_bytes", held.reserved_bytes},
          {"live_bytes", live},
          {"live_blocks", held.live_blocks.size()},
          {"largest", std::move(lines)}};
}

} // namespace

std::filesystem::path out_of_memory_file(const std::filesystem::path& attempt_folder, Rank rank) {
  return attempt_folder / ("out-of-memory-" + std::to_string(rank) + ".json");
}

void write_out_of_memory(const std::filesystem::path& file, const OutOfMemory& held) noexcept {
  try {
    const auto status =
        write_file_atomic(file, report_of(held).dump(1) + "\n", 0644, Survives::kProcessCrash);
    if (!status) log::warning("worker", status.error().what);
  } catch (const std::exception& e) {
    log::warning("worker", std::string("no report of the device's memory: ") + e.what());
  }
}

std::string largest_blocks_text(const std::filesystem::path& file) {
  const auto content = read_file(file, kLargestFile);
  if (!content) return {};
  const auto report = parse_json(*content, file.string());
  if (!report || !report->is_object()) return {};
  const auto sizes = report->value("largest", std::vector<nlohmann::json>{});
  std::string text;
  for (size_t i = 0; i < std::min(sizes.size(), kInText); ++i) {
    const auto blocks = sizes[i].value("blocks", uint64_t{0});
    text += (i == 0 ? ". Most is in " : ", ") + std::to_string(blocks) +
            (blocks == 1 ? " block of " : " blocks of ") +
            format_bytes(sizes[i].value("bytes", uint64_t{0}));
  }
  return text + ". See " + file.string();
}

} // namespace nsa::runtime
