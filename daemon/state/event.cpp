#include "daemon/state/event.h"

#include "common/base/json.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace nsa::spec {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Rung, classes, after, set, ranks, halve_micro_batch,
                                                shorten_sequences)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Ladder, rungs, base, climb_after_steps,
                                                shortest_sequence)
} // namespace nsa::spec

namespace nsa::progress {

void to_json(nlohmann::json& json, Phase phase) {
  json = phase_name(phase);
}
void from_json(const nlohmann::json& json, Phase& phase) {
  phase = phase_from_name(json.get<std::string>()).value_or(Phase::kUnknown);
}

} // namespace nsa::progress

namespace nsa::state {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Submitted, ranks, device, user, name, policy,
                                                ladder)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SlotsGranted, slots)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RejectedCheckpoint, step, folder, problem)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CheckpointChosen, step, folder, rejected)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(AttemptPrepared, token, spec)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ShimStarted, boot_id, pid, start_time_ticks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ShimAdopted, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ShimLost, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeLost, node, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeBack, node)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PartLost, node, why, first_rank, ranks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(AttemptFailedToStart, what, permanent)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HostOutOfMemory, kills)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuFault, rank, uuid, xid)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FirstStep, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HangFound, id, rank, kind, phase, step,
                                                detect_seconds, witnesses, nodes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HangWithdrawn, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DebuggerAttached, rank, pid, name, phase, step,
                                                seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DebuggerGone, rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(SlowStep, rank, phase, step, seconds, limit_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(EvidenceSaved, id, folder, kind, error, seconds,
                                                findings)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(TimerFired, timer)

namespace {
constexpr auto kGateNumbers = {std::pair("value", &GateJudged::value),
                               std::pair("at_least", &GateJudged::at_least),
                               std::pair("at_most", &GateJudged::at_most)};
} // namespace

void to_json(nlohmann::json& j, const GateJudged& e) {
  j = {{"name", e.name},          {"metric", e.metric}, {"action", e.action},
       {"passed", e.passed},      {"text", e.text},     {"first_step", e.first_step},
       {"last_step", e.last_step}};
  for (const auto& [name, at] : kGateNumbers)
    j[name] = e.*at ? nlohmann::json(*(e.*at)) : nlohmann::json();
}

void from_json(const nlohmann::json& j, GateJudged& e) {
  const GateJudged d;
  e.name = j.value("name", d.name);
  e.metric = j.value("metric", d.metric);
  e.action = j.value("action", d.action);
  e.passed = j.value("passed", d.passed);
  e.text = j.value("text", d.text);
  e.first_step = j.value("first_step", d.first_step);
  e.last_step = j.value("last_step", d.last_step);
  for (const auto& [name, at] : kGateNumbers)
    if (j.contains(name) && j[name].is_number()) e.*at = j[name].get<double>();
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StopRequested, by, checkpoint)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CancelRequested, by)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ResumeRequested, by, overrides, ranks, device,
                                                policy, from_step, exactness, replaced_data, ladder)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RunRecovered, ranks, device, user, name, policy,
                                                slots, token, first_step, best_step,
                                                checkpoint_folder, boot_id, shim_pid,
                                                shim_start_time_ticks, ladder, rungs,
                                                rung_taken_after)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuQuarantined, uuid, why)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuReleased, uuid, by)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(MessagesLost, first, last, ranks)

namespace {

// Limit of a run's ranks: a row with a larger number would use up all memory.
constexpr int kMaxRanks = 4096;
// The longest time that a run file can ask for (restart.window_seconds). A larger value, added to a
// date, would overflow the clock's range.
constexpr double kMaxPolicySeconds = 1e8;

template <class Body> constexpr std::string_view kind_of() {
  if constexpr (wire::DescribedMessage<Body>)
    return Body::kMessage.event;
  else
    return Body::kKind;
}

template <class... Body>
constexpr std::array<std::string_view, sizeof...(Body)> kinds_of(const std::variant<Body...>*) {
  return {kind_of<Body>()...};
}
// Indexed like EventBody's alternatives.
constexpr auto kKinds = kinds_of(static_cast<const EventBody*>(nullptr));

constexpr bool each_once() {
  for (size_t i = 0; i < kKinds.size(); ++i)
    for (size_t k = 0; k <= i; ++k)
      if (kKinds[i].empty() || (k < i && kKinds[i] == kKinds[k])) return false;
  return true;
}
static_assert(each_once(), "an event has no kind, or that of another");

bool is_plausible(const Policy& p) {
  const auto times = {p.window_seconds, p.delay_seconds, p.max_delay_seconds, p.evidence_seconds,
                      p.stop_grace_seconds};
  return std::all_of(times.begin(), times.end(),
                     [](double t) { return t >= 0 && t <= kMaxPolicySeconds; });
}

// The check holds for any set of rungs. Every key has its value in the run file, and no number
// overflows, since rungs keep the tokens of a step.
bool is_plausible(const spec::Ladder& ladder) {
  if (ladder.rungs.empty()) return ladder == spec::Ladder{};
  if (ladder.rungs.size() > spec::kMostRungs) return false;
  const auto number = [&](std::string_view key) {
    const auto found = ladder.base.find(std::string(key));
    constexpr size_t kMostDigits = 13; // digits of a global batch
    const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (found == ladder.base.end() || found->second.empty() || found->second.size() > kMostDigits ||
        !std::all_of(found->second.begin(), found->second.end(), is_digit))
      return -1.0;
    return std::stod(found->second);
  };
  double tokens = 1;
  for (const std::string_view key : spec::kLadderNumbers)
    if (number(key) < 0) return false;
  for (const char* key :
       {"parallel.ranks", "train.micro_batch", "train.accumulate", "train.sequence_length"})
    tokens *= std::max(1.0, number(key));
  for (const spec::Rung& rung : ladder.rungs)
    for (const auto& [key, value] : rung.set)
      if (!ladder.base.contains(key) ||
          std::find(spec::kLadderNumbers.begin(), spec::kLadderNumbers.end(), key) !=
              spec::kLadderNumbers.end())
        return false;
  const double sequences = std::max(1.0, number("train.global_batch"));
  constexpr double kMost = 5e18; // more than any run file can ask for, and below 2^63
  return tokens <= kMost && sequences * number("train.sequence_length") <= kMost &&
         number("parallel.ranks") <= 1024;
}

template <size_t I = 0>
Result<EventBody> parse_alternative(size_t index, const nlohmann::json& json) {
  if constexpr (I == std::variant_size_v<EventBody>) {
    return fail(ErrorCode::kInternal, "event index out of range");
  } else {
    if (index != I) return parse_alternative<I + 1>(index, json);
    try {
      using Body = std::variant_alternative_t<I, EventBody>;
      if constexpr (std::is_empty_v<Body>)
        return EventBody(Body{});
      else {
        Body body = json.get<Body>();
        if constexpr (requires { requires std::is_integral_v<decltype(Body::ranks)>; })
          if (body.ranks < 0 || body.ranks > kMaxRanks)
            return fail(ErrorCode::kCorrupt, std::string(kKinds[I]) + " event: " +
                                                 std::to_string(body.ranks) + " ranks");
        if constexpr (requires { body.policy; })
          if (!is_plausible(body.policy))
            return fail(ErrorCode::kCorrupt, std::string(kKinds[I]) +
                                                 " event: a time of its restart policy is "
                                                 "negative or longer than three years");
        if constexpr (requires { body.ladder; })
          if (!is_plausible(body.ladder))
            return fail(ErrorCode::kCorrupt,
                        std::string(kKinds[I]) + " event: its ladder cannot be composed");
        if constexpr (requires { body.rungs; })
          if (!are_rungs_of(body.ladder, body.rungs))
            return fail(ErrorCode::kCorrupt,
                        std::string(kKinds[I]) + " event: its ladder has no such rungs");
        return EventBody(std::move(body));
      }
    } catch (const nlohmann::json::exception& e) {
      return fail(ErrorCode::kCorrupt, std::string(kKinds[I]) + " event: " + reason_of(e));
    }
  }
}

} // namespace

std::string_view event_kind(const EventBody& body) {
  return kKinds[body.index()];
}

Rank event_rank(const EventBody& body) {
  return std::visit(
      [](const auto& b) -> Rank {
        if constexpr (requires { b.rank; })
          return b.rank;
        else
          return -1;
      },
      body);
}

nlohmann::json body_to_json(const EventBody& body) {
  return std::visit(
      [](const auto& b) {
        if constexpr (std::is_empty_v<std::decay_t<decltype(b)>>)
          return nlohmann::json::object();
        else
          return nlohmann::json(b);
      },
      body);
}

Result<EventBody> body_from_json(std::string_view kind, const nlohmann::json& json) {
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (kKinds[i] == kind) return parse_alternative(i, json);
  return fail(ErrorCode::kInvalidArgument, "unknown event kind '" + std::string(kind) + "'");
}

void to_json(nlohmann::json& j, const Policy& p) {
  j = {{"max_restarts", p.max_restarts},
       {"window_seconds", p.window_seconds},
       {"max_total_restarts", p.max_total_restarts},
       {"delay_seconds", p.delay_seconds},
       {"max_delay_seconds", p.max_delay_seconds},
       {"max_without_progress", p.max_without_progress},
       {"restart_on_hang", p.restart_on_hang},
       {"evidence_seconds", p.evidence_seconds},
       {"stop_grace_seconds", p.stop_grace_seconds},
       {"preemption_is_free", p.preemption_is_free},
       {"jitter_seed", p.jitter_seed}};
}

void from_json(const nlohmann::json& j, Policy& p) {
  const Policy d;
  p.max_restarts = j.value("max_restarts", d.max_restarts);
  p.window_seconds = j.value("window_seconds", d.window_seconds);
  p.max_total_restarts = j.value("max_total_restarts", d.max_total_restarts);
  p.delay_seconds = j.value("delay_seconds", d.delay_seconds);
  p.max_delay_seconds = j.value("max_delay_seconds", d.max_delay_seconds);
  p.max_without_progress = j.value("max_without_progress", d.max_without_progress);
  p.restart_on_hang = j.value("restart_on_hang", d.restart_on_hang);
  p.evidence_seconds = j.value("evidence_seconds", d.evidence_seconds);
  p.stop_grace_seconds = j.value("stop_grace_seconds", d.stop_grace_seconds);
  p.preemption_is_free = j.value("preemption_is_free", d.preemption_is_free);
  p.jitter_seed = j.value("jitter_seed", d.jitter_seed);
}

} // namespace nsa::state
