#include "worker/profile/kernel_parts.h"
#include "worker/profile/recorded_events.h"
#include "worker/profile/trace_file.h"

#include <kineto/ActivityType.h>

#include <ATen/record_function.h>
#include <algorithm>
#include <map>
#include <unordered_map>

namespace nsa::profile {

using libkineto::ActivityType;
using ops::StepPart;
using torch::autograd::profiler::KinetoEvent;

namespace {

constexpr size_t kLongestName = 160; // limit for kernel names, which can take kilobytes

ActivityType type_of(const KinetoEvent& event) {
  return static_cast<ActivityType>(event.activityType());
}
// For a large memset node of a graph the driver runs a kernel.
bool is_kernel(const KinetoEvent& event) {
  return type_of(event) == ActivityType::CONCURRENT_KERNEL && !is_memset_kernel(event.name());
}
bool runs_on_device(const KinetoEvent& event) {
  return type_of(event) == ActivityType::CONCURRENT_KERNEL ||
         type_of(event) == ActivityType::GPU_MEMCPY || type_of(event) == ActivityType::GPU_MEMSET;
}
bool is_call(const KinetoEvent& event) {
  return type_of(event) == ActivityType::CUDA_RUNTIME ||
         type_of(event) == ActivityType::CUDA_DRIVER;
}
bool is_node(const KinetoEvent& event) {
  return event.scope() == static_cast<uint8_t>(at::RecordScope::BACKWARD_FUNCTION);
}

// Maps work on the device to parts of a step.
class Ties {
public:
  explicit Ties(const Recording::Events& recorded) : recorded_(recorded) {
    for (const KinetoEvent& event : recorded.result->events()) {
      if (type_of(event) == ActivityType::CPU_OP) ranges_.emplace(event.correlationId(), &event);
      if (is_call(event)) callers_.emplace(event.correlationId(), event.deviceResourceId());
    }
    for (const auto& [id, range] : ranges_)
      if (range->startThreadId() == recorded.training_thread) {
        training_thread_ = range->deviceResourceId();
        break;
      }
  }

  std::optional<StepPart> part_of_range(const KinetoEvent& range) const {
    if (!is_node(range)) return ops::step_part_from(range.name());
    const auto part = recorded_.scopes->nodes().part_of(range.fwdThreadId(), range.sequenceNr());
    return part ? part : StepPart::kAutograd;
  }

  // Takes all spans of `device`, and returns their parts in the same order.
  std::vector<std::optional<StepPart>> parts_of(const std::vector<const KinetoEvent*>& device) {
    std::vector<std::optional<StepPart>> parts(device.size());
    std::map<uint64_t, std::vector<size_t>> replays; // keyed by launch
    for (size_t i = 0; i < device.size(); ++i) {
      const KinetoEvent& event = *device[i];
      const auto range = ranges_.find(event.linkedCorrelationId());
      if (range == ranges_.end())
        parts[i] = untied(event);
      else if (recorded_.scopes->replayed(range->second->name()))
        replays[event.correlationId()].push_back(i);
      else
        parts[i] = refined(event, part_of_range(*range->second));
    }
    for (const auto& [launch, of_launch] : replays)
      tie_replay(device, of_launch, parts);
    return parts;
  }

  uint64_t lost_replays() const { return lost_replays_; }

private:
  std::optional<StepPart> refined(const KinetoEvent& event, std::optional<StepPart> part) const {
    if (part != StepPart::kAttention || !is_kernel(event)) return part;
    const auto known = part_of_attention_kernel(event.name());
    return known ? known : part;
  }

  // Autograd sums gradients between its nodes, on its own thread.
  std::optional<StepPart> untied(const KinetoEvent& event) const {
    const auto caller = callers_.find(event.correlationId());
    if (caller == callers_.end() || caller->second == training_thread_) return std::nullopt;
    return StepPart::kAutograd;
  }

  // `device` is sorted by begin. A copy belongs to the part of the kernel before it.
  void tie_replay(const std::vector<const KinetoEvent*>& device, const std::vector<size_t>& launch,
                  std::vector<std::optional<StepPart>>& parts) {
    const auto graph = recorded_.scopes->replayed(
        ranges_.at(device[launch.front()]->linkedCorrelationId())->name());
    std::vector<size_t> in_order;
    for (const size_t i : launch) {
      if (!is_kernel(*device[i])) continue;
      parts[i] = part_of_attention_kernel(device[i]->name());
      if (!parts[i]) in_order.push_back(i);
    }
    if (in_order.size() == graph->kernels.size())
      for (size_t k = 0; k < in_order.size(); ++k)
        parts[in_order[k]] = graph->kernels[k];
    else
      ++lost_replays_;
    std::optional<StepPart> before;
    for (const size_t i : launch) {
      if (is_kernel(*device[i]))
        before = parts[i];
      else
        parts[i] = before;
    }
  }

  const Recording::Events& recorded_;
  std::unordered_map<uint64_t, const KinetoEvent*> ranges_; // keyed by correlation id
  std::unordered_map<uint64_t, int64_t> callers_;           // threads of CUDA API calls, by
                                                            // correlation id
  int64_t training_thread_ = -1;                            // the system's thread id
  uint64_t lost_replays_ = 0;
};

PartSpan span_of(const KinetoEvent& event, std::optional<StepPart> part) {
  const auto begin = static_cast<int64_t>(event.startNs());
  return {begin, begin + static_cast<int64_t>(event.durationNs()), part};
}

Attribution attribute_host(const Recording::Events& recorded, const Ties& ties) {
  std::vector<PartSpan> nested;
  for (const KinetoEvent& event : recorded.result->events())
    if (type_of(event) == ActivityType::CPU_OP && event.startThreadId() == recorded.training_thread)
      nested.push_back(span_of(event, ties.part_of_range(event)));
  return attribute(innermost(std::move(nested)), recorded.begin_ns, recorded.end_ns,
                   Idle::kNothing);
}

void put(wire::StepProfile& profile, const Attribution& attribution) {
  const double steps = static_cast<double>(std::max<int64_t>(1, profile.steps));
  profile.step_seconds =
      static_cast<double>(attribution.end_ns - attribution.begin_ns) / steps * 1e-9;
  profile.attributed_ratio = attribution.ratio();
  for (const PartTime& time : attribution.parts)
    profile.parts.push_back({std::string(ops::name_of(time.part)), time.all_ns() / steps * 1e-9,
                             time.idle_ns / steps * 1e-9, static_cast<double>(time.spans) / steps});
}

void write_host(TraceFile& file, const Recording::Events& recorded, const Ties& ties, Rank rank) {
  for (const KinetoEvent& event : recorded.result->events()) {
    if (is_call(event)) {
      file.span({rank, 1'000'000 + event.deviceResourceId()}, event.name(), "call",
                span_of(event, {}), "");
    } else if (type_of(event) == ActivityType::CPU_OP) {
      const auto part = ties.part_of_range(event);
      file.span({rank, static_cast<int64_t>(event.startThreadId())},
                part ? std::string(ops::name_of(*part)) : event.name(),
                is_node(event) ? "backward" : "range", span_of(event, part),
                is_node(event) ? event.name() : "");
    }
  }
}

} // namespace

Recording::Recording(std::unique_ptr<Events> events) : events_(std::move(events)) {}
Recording::~Recording() = default;
Recording::Recording(Recording&&) noexcept = default;

Status Recording::evaluate(wire::StepProfile& profile, const std::filesystem::path& trace) {
  Ties ties(*events_);
  std::vector<const KinetoEvent*> device;
  for (const KinetoEvent& event : events_->result->events())
    if (runs_on_device(event)) device.push_back(&event);
  std::stable_sort(device.begin(), device.end(), [](const KinetoEvent* a, const KinetoEvent* b) {
    return a->startNs() < b->startNs();
  });
  const std::vector<std::optional<StepPart>> parts = ties.parts_of(device);
  std::vector<PartSpan> spans;
  for (size_t i = 0; i < device.size(); ++i)
    spans.push_back(span_of(*device[i], parts[i]));
  if (events_->gpu && spans.empty())
    return fail(ErrorCode::kUnavailable, "LibTorch's profiler has recorded nothing of the GPU",
                "see whether another tool profiles it: nsactl logs RUN --rank " +
                    std::to_string(profile.rank));
  int64_t end = events_->end_ns;
  if (events_->gpu) { // after the last span, no work is in flight
    end = events_->begin_ns;
    for (const PartSpan& span : spans)
      end = std::max(end, span.end_ns);
  }
  const Attribution attribution = events_->gpu
                                      ? attribute(spans, events_->begin_ns, end, Idle::kNextPart)
                                      : attribute_host(*events_, ties);
  put(profile, attribution);
  profile.lost_graph_launches = ties.lost_replays();

  NSA_TRY_ASSIGN(TraceFile file, TraceFile::create(trace, events_->begin_ns));
  const int64_t on_device = 100'000 + profile.rank;
  file.name_process(profile.rank, "rank " + std::to_string(profile.rank) + ", host");
  write_host(file, *events_, ties, profile.rank);
  const int64_t of_parts = events_->gpu ? on_device : profile.rank;
  if (events_->gpu)
    file.name_process(on_device, "rank " + std::to_string(profile.rank) + ", " + profile.device);
  file.name_thread({of_parts, -1}, "parts of a step");
  for (const PartSpan& span : attribution.timeline)
    file.span({of_parts, -1}, std::string(ops::name_of(*span.part)), "part", span, "");
  for (size_t i = 0; i < device.size(); ++i)
    file.span({on_device, device[i]->deviceResourceId()}, device[i]->name().substr(0, kLongestName),
              "device", spans[i], parts[i] ? std::string(ops::name_of(*parts[i])) : "");
  return file.close();
}

} // namespace nsa::profile
