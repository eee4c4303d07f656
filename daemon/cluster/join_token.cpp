#include "daemon/cluster/join_token.h"

#include "common/tls/digest.h"

#include <algorithm>

namespace nsa::cluster {

namespace {
constexpr std::string_view kPrefix = "nsa1-";
constexpr size_t kSecretBytes = 20, kFingerprintDigits = 64;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
} // namespace

Result<JoinToken> JoinToken::make(std::string fingerprint) {
  NSA_TRY_ASSIGN(std::string secret, tls::random_hex(kSecretBytes));
  return JoinToken{std::move(secret), std::move(fingerprint)};
}

Result<JoinToken> JoinToken::parse(std::string_view text) {
  const size_t whole = kPrefix.size() + 2 * kSecretBytes + 1 + kFingerprintDigits;
  JoinToken token;
  bool good = text.size() == whole && text.starts_with(kPrefix);
  if (good) {
    text.remove_prefix(kPrefix.size());
    token.secret = text.substr(0, 2 * kSecretBytes);
    token.fingerprint = text.substr(2 * kSecretBytes + 1);
    good = text[2 * kSecretBytes] == '-' && is_hex(token.secret) && is_hex(token.fingerprint);
  }
  if (!good)
    return fail(ErrorCode::kInvalidArgument, "this is no token of a cluster",
                "copy all that this prints on the head: nsactl node token");
  return token;
}

std::string JoinToken::text() const {
  return std::string(kPrefix) + secret + "-" + fingerprint;
}

std::string JoinToken::digest() const {
  return tls::sha256_hex(secret);
}

} // namespace nsa::cluster
