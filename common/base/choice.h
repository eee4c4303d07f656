// A closed list of words as an enum: `parallel.device = "cuda"` is Device::kCuda. Text becomes a
// value where a file or message is read; later code never compares text. No I/O.
//
// A list is an enum of uint8_t that counts from 0, and a function that returns the words in the
// same order:
//
//   enum class Device : uint8_t { kAuto, kCpu, kCuda };
//   constexpr auto choice_names(Device) { return names_of("auto", "cpu", "cuda"); }
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nsa {

template <class... Name>
constexpr std::array<std::string_view, sizeof...(Name)> names_of(Name... name) {
  return {name...};
}

template <class E>
concept ChoiceEnum = std::is_enum_v<E> && requires(E value) { choice_names(value); };

template <ChoiceEnum E> inline constexpr auto kChoiceNames = choice_names(E{});

template <ChoiceEnum E> constexpr std::string_view name_of(E value) {
  return kChoiceNames<E>.at(static_cast<size_t>(value));
}

// Returns the word as a std::string, which messages need.
template <ChoiceEnum E> std::string text_of(E value) {
  return std::string(name_of(value));
}

template <ChoiceEnum E> std::vector<std::string> texts_of(const std::vector<E>& values) {
  std::vector<std::string> texts;
  for (const E value : values)
    texts.push_back(text_of(value));
  return texts;
}

template <ChoiceEnum E> constexpr std::optional<E> choice_from(std::string_view name) {
  for (size_t i = 0; i < kChoiceNames<E>.size(); ++i)
    if (kChoiceNames<E>[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

} // namespace nsa
