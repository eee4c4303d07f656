#include "common/wire/messages.h"

namespace nsa::wire {

void to_json(nlohmann::json& j, const RankError& m) {
  j = {{"rank", m.rank}, {"exit_code", m.exit_code}, {"what", m.what}, {"next", m.next}};
  if (m.blamed_peer) j["blamed_peer"] = *m.blamed_peer;
}

void from_json(const nlohmann::json& j, RankError& m) {
  m.rank = j.value("rank", Rank{0});
  m.exit_code = j.value("exit_code", 1);
  m.what = j.value("what", std::string());
  m.next = j.value("next", std::string());
  if (j.contains("blamed_peer")) m.blamed_peer = j.at("blamed_peer").get<Rank>();
}

Result<std::string> encode_message(const Message& message) {
  nlohmann::json body = {{"body", message.body}};
  if (message.sequence != 0) body["seq"] = message.sequence;
  // Text from outside (log lines, error texts) may hold invalid UTF-8: replace it, never throw.
  return encode_frame({static_cast<uint8_t>(message.type), 0,
                       body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
}

Result<Message> decode_message(const Frame& frame, int max_depth) {
  const std::string subject = "message of type " + std::to_string(frame.type);
  NSA_TRY_ASSIGN(nlohmann::json body, parse_json(frame.body, subject, {kMaxBodyBytes, max_depth}));
  if (!body.is_object() || !body.contains("body"))
    return fail(ErrorCode::kCorrupt, subject + " has no JSON body");
  const auto sequence = body.find("seq");
  if (sequence != body.end() && !sequence->is_number_unsigned())
    return fail(ErrorCode::kCorrupt, "message sequence is not a number");
  return Message{static_cast<MessageType>(frame.type),
                 sequence == body.end() ? 0 : sequence->get<uint64_t>(), std::move(body["body"]),
                 frame.body.size()};
}

} // namespace nsa::wire
