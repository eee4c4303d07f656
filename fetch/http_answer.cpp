#include "fetch/http_answer.h"

#include "common/base/text.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <curl/curl.h>

namespace nsa::fetch {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

double wanted_wait(const HttpAnswer& answer) {
  const std::string after = answer.header("retry-after");
  if (const auto seconds = number_in(after)) return static_cast<double>(*seconds);
  if (const time_t date = curl_getdate(after.c_str(), nullptr); date >= 0)
    return std::max(0.0, std::difftime(date, std::time(nullptr)));
  // The hub's draft header: "api";r=0;t=55 means that no requests remain for 55 seconds.
  for (const std::string& part : split(answer.header("ratelimit"), ';'))
    if (part.starts_with("t="))
      if (const auto seconds = number_in(std::string_view(part).substr(2)))
        return static_cast<double>(*seconds);
  return -1;
}

std::optional<ContentRange> content_range(const std::string& text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  const size_t dash = text.find('-'), slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  ContentRange range;
  range.total = number_in(std::string_view(text).substr(slash + 1));
  if (dash == text.npos) return range; // the text is "bytes */0"
  const auto first = number_in(std::string_view(text).substr(6, dash - 6));
  if (!first) return std::nullopt;
  range.first = *first;
  return range;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool may_pass(int status) {
  return status == 408 || status == 429 || (status >= 500 && status != 501 && status != 505);
}

} // namespace nsa::fetch
