// What describes a figure of a sample (snapshot.h) as a metric, beside the member that holds it:
//
//   struct RunSample {
//     uint64_t hangs = 0;
//     static constexpr auto kFigures =
//         figures(figure(&RunSample::hangs, {.name = "nsa_run_hangs_total", ...}));
//   };
//
// Its rows of the catalogue are made of these, and so is what the ledger keeps of a run. Pure
// values; any thread.
#pragma once

#include <span>
#include <string_view>
#include <tuple>

namespace nsa::metrics {

enum class Type { kGauge, kCounter, kHistogram };

inline constexpr bool kQueryOnly = false; // Described::on_dashboard

struct Described {
  std::string_view name;
  Type type = Type::kGauge;
  std::string_view meaning;
  // Of a map: the label that holds its keys, and the keys that have a series from the start, since
  // increase() misses the step from "no series" to 1. Another key counts as "other", so that labels
  // stay bounded. No words: the keys are bounded by themselves.
  std::string_view label = {};
  std::span<const std::string_view> words = {};
  // Of a run: under this key the ledger keeps it, so that a restart of nsad does not reset it. A
  // key of a ledger never changes.
  const char* kept = nullptr;
  bool on_dashboard = true; // false: for queries only
};

template <class Sample, class Value> struct Figure {
  Value Sample::* at;
  Described of;
};
template <class Sample, class Value>
constexpr Figure<Sample, Value> figure(Value Sample::* at, Described of) {
  return {at, of};
}
template <class... Each> constexpr std::tuple<Each...> figures(Each... each) {
  return {each...};
}

template <class Sample, class Visit> constexpr void for_each_figure(Visit visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, Sample::kFigures);
}

} // namespace nsa::metrics
