// An administrator carries this token from the head to a node that joins. It holds a secret, which
// works once and for a short time, and the fingerprint of the head's authority. All functions are
// pure.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::cluster {

struct JoinToken {
  static constexpr Duration kLifetime = std::chrono::minutes(10);

  std::string secret;      // 40 hexadecimal digits
  std::string fingerprint; // 64 hexadecimal digits; of the authority's certificate

  static Result<JoinToken> make(std::string fingerprint);
  // Parses "nsa1-<secret>-<fingerprint>". Error: kInvalidArgument if the text is no token.
  static Result<JoinToken> parse(std::string_view text);
  std::string text() const;
  // The head stores this digest instead of the secret.
  std::string digest() const;
};

} // namespace nsa::cluster
