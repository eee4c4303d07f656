// The packed form of a rank's message: the values of its members in the order of its descriptor
// (rank_descriptor.h), in native byte order, without names. Two programs use it only if their
// layout_of() is equal. All others use the JSON form, which has versions. Pure; any thread.
#pragma once

#include "common/wire/rank_descriptor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace nsa::wire {

// Members that can be packed are numbers and maps from names to numbers.
using PackedFigures = std::map<std::string, double>;
template <class Value>
inline constexpr bool kIsPackable =
    std::is_same_v<Value, PackedFigures> || std::is_same_v<Value, double> ||
    (std::is_integral_v<Value> && !std::is_same_v<Value, bool>);

// An FNV-1a hash of the version and of the members' names and types.
template <DescribedMessage T> constexpr uint64_t layout_of() {
  uint64_t hash = 0xcbf2'9ce4'8422'2325ull ^ static_cast<uint64_t>(T::kMessage.version);
  const auto mix = [&hash](std::string_view text) {
    for (const char c : text)
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3ull;
  };
  for_each_member<T>([&](const auto& m) {
    using Value = std::decay_t<decltype(std::declval<T>().*m.at)>;
    static_assert(kIsPackable<Value>, "this member has no packed form");
    mix(m.name);
    mix(std::is_same_v<Value, PackedFigures> ? ":figures,"
        : std::is_floating_point_v<Value>    ? ":double,"
        : sizeof(Value) == 8                 ? ":64,"
                                             : ":32,");
  });
  return hash;
}

namespace packed {

// JSON has no NaN either. Names become labels of metrics, so they are short and printable ASCII.
inline bool is_plain(double value) {
  return std::isfinite(value);
}
inline bool is_plain(std::string_view name) {
  return name.size() <= std::numeric_limits<uint8_t>::max() &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
}

struct Writer {
  std::string bytes;
  bool plain = true;

  template <class Number> void put(const Number& number) {
    if constexpr (std::is_floating_point_v<Number>) plain = plain && is_plain(number);
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void put(const PackedFigures& figures) {
    put(static_cast<uint32_t>(figures.size()));
    for (const auto& [name, value] : figures) {
      plain = plain && is_plain(name);
      put(static_cast<uint8_t>(name.size()));
      bytes += name;
      put(value);
    }
  }
};

struct Reader {
  std::string_view rest;
  bool good = true;

  template <class Number> void take(Number& number) {
    good = good && rest.size() >= sizeof number;
    if (!good) return;
    std::memcpy(&number, rest.data(), sizeof number);
    rest.remove_prefix(sizeof number);
    if constexpr (std::is_floating_point_v<Number>) good = is_plain(number);
  }
  void take(PackedFigures& figures) {
    uint32_t count = 0;
    for (take(count); good && count > 0; --count) {
      uint8_t length = 0;
      double value = 0;
      take(length);
      const std::string_view name = rest.substr(0, length);
      rest.remove_prefix(name.size());
      take(value);
      // Names must ascend, so that a message has one packed form only.
      good = good && is_plain(name) && (figures.empty() || figures.rbegin()->first < name);
      if (good) figures.emplace_hint(figures.end(), name, value);
    }
  }
};

} // namespace packed

// Empty if a value is not finite, or a name is not plain: such a message goes as JSON.
template <DescribedMessage T> std::optional<std::string> pack(const T& message) {
  packed::Writer writer;
  for_each_member<T>([&](const auto& m) { writer.put(message.*m.at); });
  return writer.plain ? std::optional(std::move(writer.bytes)) : std::nullopt;
}

// Empty if the bytes are not the packed form of such a message.
template <DescribedMessage T> std::optional<T> unpack(std::string_view bytes) {
  packed::Reader reader{bytes};
  std::optional<T> message(std::in_place);
  for_each_member<T>([&](const auto& m) { reader.take((*message).*m.at); });
  if (!reader.good || !reader.rest.empty()) message.reset();
  return message;
}

} // namespace nsa::wire
