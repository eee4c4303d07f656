// Describes a figure of a sample (snapshot.h) as a metric, beside the member that holds it:
//
//   struct RunSample {
//     uint64_t hangs = 0;
//     static constexpr auto kFigures =
//         figures(figure(&RunSample::hangs, {.name = "nsa_run_hangs_total", ...}));
//   };
//
// The catalogue's rows are made from these, and so are the values that the ledger keeps of a run.
// Pure values; any thread may use them.
#pragma once

#include <span>
#include <string_view>
#include <tuple>

namespace nsa::metrics {

enum class Type { kGauge, kCounter, kHistogram };

inline constexpr bool kQueryOnly = false; // value for Described::on_dashboard

struct Described {
  std::string_view name;
  Type type = Type::kGauge;
  std::string_view meaning;
  // For a map: the label for its keys, and the keys that have a series from the start. increase()
  // would miss the step from "no series" to 1. Any other key counts as "other", so that label
  // values stay bounded. Without words, the keys themselves are bounded.
  std::string_view label = {};
  std::span<const std::string_view> words = {};
  // For a run: the ledger keeps the value under this key, so that a restart of nsad does not reset
  // it. A key in the ledger never changes.
  const char* kept = nullptr;
  bool on_dashboard = true; // false if only queries use it
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
