#include "common/base/printable.h"
#include "common/wire/api_types.h"

#include <charconv>

namespace nsa::wire {

namespace {

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return hex;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) {
    unsigned char byte = 0;
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

} // namespace

void to_json(nlohmann::json& json, const LogLine& line) {
  json = {{"attempt", line.attempt}, {"rank", line.rank}, {"time", line.time},
          {"stream", line.stream},   {"text", line.text}, {"position", line.position}};
  if (!is_utf8(line.text)) json["text_hex"] = to_hex(line.text);
}

void from_json(const nlohmann::json& json, LogLine& line) {
  const LogLine none;
  line.attempt = json.value("attempt", none.attempt);
  line.rank = json.value("rank", none.rank);
  line.time = json.value("time", none.time);
  line.stream = json.value("stream", none.stream);
  line.text = json.value("text", none.text);
  line.position = json.value("position", none.position);
  line.bytes = json.contains("text_hex") ? from_hex(json.value("text_hex", "")) : line.text;
}

} // namespace nsa::wire
