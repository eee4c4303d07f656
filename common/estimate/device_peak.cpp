#include "common/estimate/device_peak.h"

#include <utility>

namespace nsa::estimate {

double peak_bf16_flops(std::string_view device_name) {
  // Variants of a chip come before its plain name, and "H200" before "H20", which it contains.
  static constexpr std::pair<std::string_view, double> kRates[] = {
      {"H100 PCIe", 756e12},  {"H100 NVL", 835e12}, {"H100", 989.4e12},    {"H200 NVL", 835e12},
      {"H200", 989.4e12},     {"H20", 148e12},      {"H800 PCIe", 756e12}, {"H800", 989.4e12},
      {"A100", 312e12},       {"A800", 312e12},     {"A30", 165e12},       {"L40S", 362e12},
      {"RTX 4090", 165.2e12}, {"RTX 3090", 71e12}};
  for (const auto& [name, rate] : kRates)
    if (device_name.find(name) != std::string_view::npos) return rate;
  return 0;
}

} // namespace nsa::estimate
