// The descriptor of a rank's message. Each message struct contains its descriptor:
//
//   struct RankInjected {
//     Rank rank = 0;
//     uint64_t step = 0;
//     std::string kind;
//
//     static constexpr RankMessageInfo kMessage{.type = MessageType::kRankInjected, ...};
//     static constexpr auto kMembers = members(member("rank", &RankInjected::rank), ...);
//   };
//
// These two define the message's JSON, log, quota, event, sentence and documentation. Plain values;
// usable from any thread.
#pragma once

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/wire/words.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace nsa::wire {

enum class MessageType : uint8_t; // rank_messages.h

enum class Delivery {
  kMustArrive, // waits for a slow reader
  kMayDrop,    // may be dropped in favour of a newer one
};

// The quota of [quota] that it uses, so that many messages of one class do not displace another.
enum class Budget {
  kSteps,
  kMilestones, // messages on which the run's outcome depends
  kReports,    // everything else
};

struct RankMessageInfo {
  MessageType type;
  // Increased if a member changes its meaning. A program rejects messages and stored events with a
  // version above its own. New members do not increase it.
  int version = 1;
  std::string_view name; // name in the log of a rank that a user started by hand
  Delivery delivery = Delivery::kMustArrive;
  Budget budget = Budget::kReports;
  std::string_view event = {}; // its kind in the ledger, which never changes; empty: no event
  Severity severity = Severity::kInfo; // severity of the event
  // The event's sentence for users, with {members}. Empty: daemon/state/describe.cpp has it.
  std::string_view text = {};
};

// A member with its name in JSON.
template <class T, class Value> struct Member {
  const char* name;
  Value T::* at;
};
template <class T, class Value> constexpr Member<T, Value> member(const char* name, Value T::* at) {
  return {name, at};
}
template <class... Each> constexpr std::tuple<Each...> members(Each... each) {
  return {each...};
}

// ---- metrics: the values in a record of steps --------------------------------------------------

enum class Unit { kNone, kNats, kTokens, kTokensPerSecond, kSteps, kSeconds, kBytes };

// How nsad aggregates a rank's records. The ledger keeps the result, so it outlives nsad.
enum class OverRecords {
  kNothing, // not aggregated, or aggregated separately (daemon/run_metrics/run_record.cpp)
  kNewest,
  kSum,
};

struct Metric {
  Unit unit = Unit::kNone;
  OverRecords over = OverRecords::kNothing;
  std::string_view tensorboard = {}; // tag of its curve; empty: none. Bytes are shown as GiB.
  // Names of the aggregate of rank 0's records, which counts for the run, and of each rank's.
  // Empty: none, or a separately defined one.
  std::string_view prometheus = {}, prometheus_of_rank = {};
  std::string_view status = {}; // the run's value in `nsactl status`; empty: not shown
  bool on_dashboard = true;     // false: for queries only
  std::string_view meaning;
};

// A member that is a metric. metrics.jsonl has it under this name.
template <class T, class Value> struct MetricMember {
  const char* name;
  Value T::* at;
  Metric metric;
};
template <class T, class Value>
constexpr MetricMember<T, Value> metric(const char* name, Value T::* at, Metric metric) {
  return {name, at, metric};
}

// A value for each layer, not in every record: a map from "3" or "3/selected" to a value. Words may
// replace the layer's number.
struct LayerMetric {
  std::string_view tensorboard; // tags are this, a slash and the key
  std::string_view prometheus;
  std::string_view label = {}; // label for the word after the layer; empty: there is no word
  // Words after a layer; without a label, words that replace the layer's number.
  std::span<const std::string_view> words = {};
  bool on_dashboard = true; // as in Metric
  std::string_view meaning;
};

template <class T> struct LayerMetricMember {
  const char* name;
  std::map<std::string, double> T::* at;
  LayerMetric layers;
};
template <class T>
constexpr LayerMetricMember<T> layer_metric(const char* name, std::map<std::string, double> T::* at,
                                            LayerMetric layers) {
  return {name, at, layers};
}

template <class T>
concept DescribedMessage = requires {
  T::kMessage;
  T::kMembers;
};

template <DescribedMessage T, class Visit> constexpr void for_each_member(Visit visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, T::kMembers);
}

// ---- JSON: missing members keep their defaults, and unknown keys are ignored -------------------

template <class T> inline constexpr bool kIsOptional = false;
template <class T> inline constexpr bool kIsOptional<std::optional<T>> = true;

template <DescribedMessage T> void to_json(nlohmann::json& json, const T& message) {
  json = nlohmann::json::object();
  if constexpr (T::kMessage.version > 1) json["version"] = T::kMessage.version;
  for_each_member<T>([&](const auto& m) {
    const auto& value = message.*m.at;
    if constexpr (kIsOptional<std::decay_t<decltype(value)>>) {
      if (value) json[m.name] = *value;
    } else {
      json[m.name] = value;
    }
  });
}

template <DescribedMessage T> void from_json(const nlohmann::json& json, T& message) {
  if (const int version = json.value("version", 1); version > T::kMessage.version)
    throw nlohmann::json::other_error::create(501,
                                              "version " + std::to_string(version) +
                                                  ", and this program reads up to " +
                                                  std::to_string(T::kMessage.version),
                                              &json);
  const T defaults{};
  for_each_member<T>([&](const auto& m) {
    auto& value = message.*m.at;
    using Value = std::decay_t<decltype(value)>;
    if constexpr (kIsOptional<Value>) {
      if (json.contains(m.name)) value = json.at(m.name).template get<typename Value::value_type>();
    } else {
      value = json.value(m.name, defaults.*m.at);
    }
  });
}

// ---- the event's sentence -----------------------------------------------------------------------

template <class T> inline constexpr bool kIsChoice = false;
template <class E> inline constexpr bool kIsChoice<ChoiceOrText<E>> = true;

// Formats a value for users, by its type and the unit in its name.
template <class Value> std::string shown(std::string_view name, const Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    return value;
  } else if constexpr (kIsChoice<Value>) {
    return value.text();
  } else if constexpr (std::is_floating_point_v<Value>) {
    if (name.ends_with("seconds")) return format_duration(value);
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", value);
    return text;
  } else {
    static_assert(std::is_integral_v<Value> && !std::is_same_v<Value, bool>,
                  "a sentence has texts and numbers; others need one in describe.cpp");
    return name.ends_with("bytes") ? format_bytes(static_cast<uint64_t>(value))
                                   : std::to_string(value);
  }
}

template <class Value>
inline constexpr bool kIsShown = std::is_same_v<Value, std::string> || kIsChoice<Value> ||
                                 (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>);

// Returns whether each {name} of the sentence is a member that can be shown.
template <DescribedMessage T> constexpr bool names_its_members() {
  std::string_view rest = T::kMessage.text;
  while (true) {
    const size_t open = rest.find('{');
    if (open == std::string_view::npos) return true;
    const size_t close = rest.find('}', open);
    if (close == std::string_view::npos) return false;
    const std::string_view name = rest.substr(open + 1, close - open - 1);
    bool found = false;
    for_each_member<T>([&](const auto& m) {
      using Value = std::decay_t<decltype(std::declval<T>().*m.at)>;
      found = found || (kIsShown<Value> && name == m.name);
    });
    if (!found) return false;
    rest.remove_prefix(close + 1);
  }
}

template <DescribedMessage T> std::string sentence_of(const T& message) {
  static_assert(names_its_members<T>(), "the sentence names something that is no member");
  std::string text;
  std::string_view rest = T::kMessage.text;
  for (size_t open; (open = rest.find('{')) != std::string_view::npos;) {
    const size_t close = rest.find('}', open);
    const std::string_view name = rest.substr(open + 1, close - open - 1);
    text += rest.substr(0, open);
    for_each_member<T>([&](const auto& m) {
      if constexpr (kIsShown<std::decay_t<decltype(message.*m.at)>>)
        if (name == m.name) text += shown(name, message.*m.at);
    });
    rest.remove_prefix(close + 1);
  }
  return text.append(rest);
}

// ---- a message's metrics as a table -------------------------------------------------------------

template <class T> struct MetricRow {
  const char* name = nullptr;
  std::variant<double T::*, uint64_t T::*> at;
  Metric metric;
  double of(const T& record) const {
    return std::visit([&](auto member) { return static_cast<double>(record.*member); }, at);
  }
};

template <DescribedMessage T> constexpr size_t metric_count() {
  size_t count = 0;
  for_each_member<T>([&](const auto& m) { count += requires { m.metric; } ? 1 : 0; });
  return count;
}
template <DescribedMessage T> constexpr std::array<MetricRow<T>, metric_count<T>()> metrics_of() {
  std::array<MetricRow<T>, metric_count<T>()> rows;
  size_t next = 0;
  for_each_member<T>([&](const auto& m) {
    if constexpr (requires { m.metric; }) rows[next++] = {m.name, m.at, m.metric};
  });
  return rows;
}

template <DescribedMessage T> constexpr size_t layer_metric_count() {
  size_t count = 0;
  for_each_member<T>([&](const auto& m) { count += requires { m.layers; } ? 1 : 0; });
  return count;
}
template <DescribedMessage T>
constexpr std::array<LayerMetricMember<T>, layer_metric_count<T>()> layer_metrics_of() {
  std::array<LayerMetricMember<T>, layer_metric_count<T>()> rows;
  size_t next = 0;
  for_each_member<T>([&](const auto& m) {
    if constexpr (requires { m.layers; }) rows[next++] = m;
  });
  return rows;
}

// ---- lists of messages --------------------------------------------------------------------------

template <DescribedMessage... T> struct MessageList {
  static constexpr std::array<RankMessageInfo, sizeof...(T)> kInfos{T::kMessage...};
  template <class... More> using With = MessageList<T..., More...>;
  template <class... Before> using VariantAfter = std::variant<Before..., T...>;

  // Calls visit(std::type_identity<Message>()) for the message with that number, if it exists.
  template <class Visit> static void visit(MessageType type, Visit visit) {
    ((T::kMessage.type == type ? visit(std::type_identity<T>()) : void()), ...);
  }
  template <class Visit> static void for_each(Visit visit) {
    (visit(std::type_identity<T>()), ...);
  }
};

} // namespace nsa::wire
