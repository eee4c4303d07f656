// Status and headers of an HTTP answer, and what they say about ranges and waiting (RFC 9110).
// Pure.
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

  // Empty where the answer has no such header. `name` in lower case.
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second;
  }
};

// "Content-Range: bytes 0-99/1000" or, of an empty file, "bytes */0" (RFC 9110, 14.4).
struct ContentRange {
  uint64_t first = 0;
  std::optional<uint64_t> total; // unknown where the server writes *
};
std::optional<ContentRange> content_range(const std::string& text);

// A decimal number and nothing else.
std::optional<uint64_t> number_in(std::string_view text);

// With A to Z as a to z: names of headers are the same in both.
std::string lower(std::string_view text);

// Seconds to wait before the next try, by Retry-After or RateLimit; negative: the server says
// nothing.
double wanted_wait(const HttpAnswer& answer);

bool is_redirect(int status);

// Whether the same request may get another answer later: 408, 429 and most of 5xx.
bool may_pass(int status);

} // namespace nsa::fetch
