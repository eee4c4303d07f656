#include "common/net/http.h"

namespace nsa::net {

namespace {
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decodes. '+' means a blank only in queries.
std::optional<std::string> decode(std::string_view text, bool plus_is_blank) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_blank) {
      c = ' ';
    }
    // None of our paths or names has a NUL, at which C functions would stop.
    if (c == '\0') return std::nullopt;
    plain.push_back(c);
  }
  return plain;
}
} // namespace

std::optional<Target> parse_target(std::string_view target) {
  if (target.empty() || target[0] != '/') return std::nullopt;
  const size_t question = target.find('?');
  Target parsed;
  parsed.path = target.substr(0, question);
  if (!decode_component(parsed.path)) return std::nullopt;
  if (question == std::string_view::npos) return parsed;
  std::string_view rest = target.substr(question + 1);
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    auto key = decode(pair.substr(0, equals), true);
    auto value = equals == std::string_view::npos ? std::optional<std::string>("")
                                                  : decode(pair.substr(equals + 1), true);
    if (!key || !value) return std::nullopt;
    parsed.query[*key] = std::move(*value);
  }
  return parsed;
}

std::optional<std::string> decode_component(std::string_view text) {
  return decode(text, false);
}

std::string encode_component(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool unreserved = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                            (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    if (unreserved) {
      encoded.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded.push_back('%');
    encoded.push_back(kHex[byte >> 4]);
    encoded.push_back(kHex[byte & 15]);
  }
  return encoded;
}

std::string_view status_text(int status) {
  switch (status) {
  case 200:
    return "OK";
  case 202:
    return "Accepted";
  case 400:
    return "Bad Request";
  case 401:
    return "Unauthorized";
  case 403:
    return "Forbidden";
  case 404:
    return "Not Found";
  case 405:
    return "Method Not Allowed";
  case 408:
    return "Request Timeout";
  case 409:
    return "Conflict";
  case 413:
    return "Content Too Large";
  case 421:
    return "Misdirected Request";
  case 422:
    return "Unprocessable Content";
  case 426:
    return "Upgrade Required";
  case 429:
    return "Too Many Requests";
  case 431:
    return "Request Header Fields Too Large";
  case 500:
    return "Internal Server Error";
  case 501:
    return "Not Implemented";
  case 503:
    return "Service Unavailable";
  case 507:
    return "Insufficient Storage";
  default:
    return "Status";
  }
}

} // namespace nsa::net
