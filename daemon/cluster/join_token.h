// What an administrator carries from the head to a node that joins: a secret that is good once and
// for a short time, and the fingerprint of the head's authority. Pure.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::cluster {

struct JoinToken {
  static constexpr Duration kLifetime = std::chrono::minutes(10);

  std::string secret;      // 40 hexadecimal digits
  std::string fingerprint; // of the authority's certificate, 64 hexadecimal digits

  static Result<JoinToken> make(std::string fingerprint);
  // "nsa1-<secret>-<fingerprint>". kInvalidArgument: this is no token.
  static Result<JoinToken> parse(std::string_view text);
  std::string text() const;
  // What the head keeps instead of the secret.
  std::string digest() const;
};

} // namespace nsa::cluster
