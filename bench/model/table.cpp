#include "bench/model/table.h"

#include "common/base/build_info.h"

#include <cstdio>

namespace nsa::bench {

namespace {

using nlohmann::ordered_json;

constexpr const char* kHeading = "         S  tokens/s  ms a step (p10-p90)        forward "
                                 "backward optimizer  GiB (reserved)   MFU  "
                                 "kernels, layers, graphs";

void print_line(const ordered_json& r) {
  std::printf("%-5s %6lld %9.0f  %8.2f (%.2f-%.2f) %12.2f %8.2f %9.2f  %6.2f (%6.2f) %4.1f %%  %s, "
              "%s, %s\n",
              r["attention"].get<std::string>().c_str(),
              static_cast<long long>(r["sequence"].get<int64_t>()),
              r["tokens_per_second"].get<double>(), r["step_ms"]["median"].get<double>(),
              r["step_ms"]["p10"].get<double>(), r["step_ms"]["p90"].get<double>(),
              r["forward_ms"].get<double>(), r["backward_ms"].get<double>(),
              r["optimizer_ms"].get<double>(), r["peak_allocated_gib"].get<double>(),
              r["reserved_gib"].get<double>(),
              r["mfu"].is_null() ? 0.0 : 100 * r["mfu"].get<double>(),
              r["kernels"].get<std::string>().c_str(), r["layers"].get<std::string>().c_str(),
              r["graphs"].get<std::string>().c_str());
  if (r["ranks"].get<int>() > 1) {
    std::printf("      %d ranks, %.0f tokens/s each; waiting for peers:", r["ranks"].get<int>(),
                r["tokens_per_second_a_rank"].get<double>());
    for (const ordered_json& rank : r["by_rank"])
      std::printf(" %.1f %%", 100 * rank["communication_share"].get<double>());
    std::printf(" of a step, rank by rank\n");
  }
  if (!r.contains("parts_ms")) return;
  std::printf("      parts, ms:");
  for (const auto& [name, value] : r["parts_ms"].items())
    std::printf("  %s %.2f", name.c_str(), value.get<double>());
  std::printf("\n");
}

} // namespace

void print_head(const Options& options, const spec::RunSpec& spec,
                const runtime::Runtime& runtime) {
  const std::string build = build_info().version + "+" + build_info().commit;
  if (options.json) {
    std::printf("%s\n", ordered_json{{"device", runtime.device_name()},
                                     {"ranks", options.ranks},
                                     {"versions", runtime.versions()},
                                     {"build", build},
                                     {"layers", spec.model.layers},
                                     {"dimension", spec.model.dimension}}
                            .dump()
                            .c_str());
  } else {
    std::string versions;
    for (const auto& [name, version] : runtime.versions())
      versions += ", " + name + " " + version;
    std::string ranks;
    if (options.ranks > 1) ranks = std::to_string(options.ranks) + " ranks, ";
    std::printf("%s%s, nsa-bench %s\n%s%lld layers of %lld, %lld tokens a micro-batch or one "
                "sequence, AdamW included, peak memory allocated (reserved)\n%s\n",
                runtime.device_name().c_str(), versions.c_str(), build.c_str(), ranks.c_str(),
                static_cast<long long>(spec.model.layers),
                static_cast<long long>(spec.model.dimension),
                static_cast<long long>(options.tokens), kHeading);
  }
  std::fflush(stdout);
}

void print_row(const ordered_json& row, bool json) {
  if (json)
    std::printf("%s\n", row.dump().c_str());
  else
    print_line(row);
  std::fflush(stdout);
}

} // namespace nsa::bench
