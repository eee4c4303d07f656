// Status and headers of an HTTP answer, and what they say about ranges and waiting (RFC 9110). Pure
// functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::fetch {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers; // names in lower case

  // Empty if the answer has no such header. `name` must be in lower case.
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second;
  }
};

// "Content-Range: bytes 0-99/1000" or, for an empty file, "bytes */0" (RFC 9110, 14.4).
struct ContentRange {
  uint64_t first = 0;
  std::optional<uint64_t> total; // nullopt if the server writes *
};
std::optional<ContentRange> content_range(const std::string& text);

// Parses a decimal number; nullopt for any other text.
std::optional<uint64_t> number_in(std::string_view text);

// Converts A to Z to lower case; header names ignore case.
std::string lower(std::string_view text);

// Seconds to wait before the next try, from Retry-After or RateLimit; negative if the server says
// nothing.
double wanted_wait(const HttpAnswer& answer);

bool is_redirect(int status);

// Whether a retry of the same request may succeed: 408, 429 and most of 5xx.
bool may_pass(int status);

} // namespace nsa::fetch
