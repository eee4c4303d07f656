#include "bench/ranks/own_rank.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace nsa::bench {

Result<std::optional<OwnRank>> own_rank(int world) {
  const char* text = std::getenv(kRankVariable);
  if (text == nullptr) return std::nullopt;
  const std::string_view number = text;
  const char* folder = std::getenv(kRendezvousVariable);
  OwnRank own;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), own.rank);
  if (error != std::errc() || end != number.data() + number.size() || own.rank < 0 ||
      own.rank >= world || folder == nullptr)
    return fail(ErrorCode::kInvalidArgument,
                std::string(kRankVariable) + " is \"" + text + "\", which no rank of " +
                    std::to_string(world) + " here is given",
                std::string("unset ") + kRankVariable + ": --ranks sets it for its own processes");
  own.rendezvous = folder;
  return own;
}

} // namespace nsa::bench
