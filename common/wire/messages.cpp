#include "common/wire/messages.h"

#include <cstring>

namespace nsa::wire {

NSA_DEFINE_JSON(EffectiveToggle, name, requested, effective)
NSA_DEFINE_JSON(NeedleCell, length, depth_from, depth_to, asked, found)
NSA_DEFINE_JSON(StopRequest, checkpoint)
NSA_DEFINE_JSON(CollectivesRequest, folder)
NSA_DEFINE_JSON(RankIdentity, rank, pid, start_time_ticks, running, exit_code, signal)
NSA_DEFINE_JSON(ShimHello, protocol, run_id, attempt, token, boot_id, build, pid, start_time_ticks,
                ranks, first_sequence, last_sequence, lost_messages)
NSA_DEFINE_JSON(RankStarted, rank, pid, start_time_ticks)
NSA_DEFINE_JSON(RankExited, rank, pid, exit_code, signal, core_dumped, monotonic_ns, killed_by_shim,
                user_seconds, system_seconds, max_resident_bytes)
NSA_DEFINE_JSON(RankMessage, rank, type, body)
NSA_DEFINE_JSON(ThreadStack, tid, name, state, wait_channel, system_call, cpu_ticks_first,
                cpu_ticks_second, frames)
NSA_DEFINE_JSON(RankEvidence, rank, pid, process_state, traced, dead, cpu_ticks_first,
                cpu_ticks_second, main_cpu_ticks_first, main_cpu_ticks_second, threads, collectives,
                error)
NSA_DEFINE_JSON(EvidenceTaken, id, folder, seconds, ranks, nccl_ras)
NSA_DEFINE_JSON(LogDropped, rank, bytes, why)
NSA_DEFINE_JSON(Refused, rank, what, count, why)
NSA_DEFINE_JSON(LaunchFailed, what)
NSA_DEFINE_JSON(DaemonHello, protocol, token, acknowledged_sequence, step_layout)
NSA_DEFINE_JSON(Acknowledge, sequence)
NSA_DEFINE_JSON(StopRanks, checkpoint)
NSA_DEFINE_JSON(KillRanks, reason)
NSA_DEFINE_JSON(TakeEvidence, id, interval_seconds, stack_limit_seconds)

// Messages without members.
void to_json(nlohmann::json& j, const CheckpointRequest&) {
  j = nlohmann::json::object();
}
void from_json(const nlohmann::json&, CheckpointRequest&) {}
void to_json(nlohmann::json& j, const CheckpointRanks&) {
  j = nlohmann::json::object();
}
void from_json(const nlohmann::json&, CheckpointRanks&) {}
void to_json(nlohmann::json& j, const Release&) {
  j = nlohmann::json::object();
}
void from_json(const nlohmann::json&, Release&) {}
void to_json(nlohmann::json& j, const DaemonGoodbye&) {
  j = nlohmann::json::object();
}
void from_json(const nlohmann::json&, DaemonGoodbye&) {}

namespace {
const char* name_of(Budget budget) {
  return budget == Budget::kSteps        ? "steps"
         : budget == Budget::kMilestones ? "milestones"
                                         : "reports";
}
} // namespace

std::string rank_messages_markdown() {
  std::string text = "| number | message | delivery | quota | event | severity | sentence |\n"
                     "|---|---|---|---|---|---|---|\n";
  RankMessages::for_each([&]<class T>(std::type_identity<T>) {
    constexpr const RankMessageInfo& m = T::kMessage;
    text += "| " + std::to_string(static_cast<int>(m.type)) + " | " + std::string(m.name) + " | " +
            (m.delivery == Delivery::kMustArrive ? "must arrive" : "may be dropped") + " | " +
            name_of(m.budget) + " | " +
            (m.event.empty() ? "none" : "`" + std::string(m.event) + "`") + " | " +
            (m.event.empty() ? "" : text_of(m.severity)) + " | " + std::string(m.text) + " |\n";
  });
  return text;
}

Result<std::string> encode_message(const Message& message) {
  nlohmann::json body = {{"body", message.body}};
  if (message.sequence != 0) body["seq"] = message.sequence;
  // Text from outside (log lines, error texts) may be invalid UTF-8. It is replaced, so dump() does
  // not throw.
  return encode_frame({static_cast<uint8_t>(message.type), 0,
                       body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
}

Result<std::string> encode_packed_step(std::string_view packed, uint64_t sequence) {
  Frame frame{static_cast<uint8_t>(MessageType::kPackedStep), 0, {}};
  frame.body.reserve(sizeof sequence + packed.size());
  frame.body.append(reinterpret_cast<const char*>(&sequence), sizeof sequence).append(packed);
  return encode_frame(frame);
}

namespace {
Result<Message> decode_packed_step(const Frame& frame, const std::string& subject) {
  Message message{MessageType::kPackedStep, 0, {}, frame.body.size()};
  if (frame.body.size() < sizeof message.sequence)
    return fail(ErrorCode::kCorrupt, subject + " (a packed step) ends within its sequence");
  std::memcpy(&message.sequence, frame.body.data(), sizeof message.sequence);
  message.packed = frame.body.substr(sizeof message.sequence);
  return message;
}
} // namespace

Result<Message> decode_message(const Frame& frame, int max_depth) {
  const std::string subject = "message of type " + std::to_string(frame.type);
  if (frame.type == static_cast<uint8_t>(MessageType::kPackedStep))
    return decode_packed_step(frame, subject);
  NSA_TRY_ASSIGN(nlohmann::json body, parse_json(frame.body, subject, {kMaxBodyBytes, max_depth}));
  if (!body.is_object() || !body.contains("body"))
    return fail(ErrorCode::kCorrupt, subject + " has no JSON body");
  const auto sequence = body.find("seq");
  if (sequence != body.end() && !sequence->is_number_unsigned())
    return fail(ErrorCode::kCorrupt, subject + " has a sequence that is no number from 0 on");
  return Message{static_cast<MessageType>(frame.type),
                 sequence == body.end() ? 0 : sequence->get<uint64_t>(), std::move(body["body"]),
                 frame.body.size()};
}

} // namespace nsa::wire
