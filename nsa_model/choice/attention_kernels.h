// Kernels: the implementation of NSA's attention, after kernel_plan.h has resolved "auto". The
// operators and the model's configuration share it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nsa::choice {

enum class Kernels : uint8_t { kAten, kReference, kFused };
constexpr std::array<std::string_view, 3> choice_names(Kernels) {
  return {"aten", "reference", "fused"};
}
constexpr std::string_view kernels_name(Kernels kernels) {
  return choice_names(kernels).at(static_cast<size_t>(kernels));
}
// Parses the names that callers of torch.ops.nsa.* use.
constexpr std::optional<Kernels> kernels_from(std::string_view name) {
  constexpr auto kNames = choice_names(Kernels{});
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Kernels>(i);
  return std::nullopt;
}

} // namespace nsa::choice
