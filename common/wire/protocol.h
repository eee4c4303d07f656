// The version of the messages between nsad, its shims and other nodes. It stays the same while
// neighbouring builds understand each other; an unknown member needs no new version. Each side
// sends its version in its hello, and rejects another one. Callable from any thread.
#pragma once

#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::wire {

inline constexpr int kProtocol = 1;

// `who` begins the sentence: "the shim". `next` is for the user, who has both builds.
inline Status check_protocol(int theirs, std::string_view who, std::string next) {
  if (theirs == kProtocol) return {};
  return fail(ErrorCode::kUnsupported,
              std::string(who) + " speaks protocol " + std::to_string(theirs) +
                  ", this program speaks " + std::to_string(kProtocol),
              std::move(next));
}

} // namespace nsa::wire
