#include "daemon/parts/messages.h"

#include "common/base/build_info.h"

#include <cstring>

namespace nsa::parts {

NSA_DEFINE_JSON(PartRef, run, attempt)
NSA_DEFINE_JSON(Call, id, what, part, body)
NSA_DEFINE_JSON(Answer, id, ok, code, what, next, body, newer)
NSA_DEFINE_JSON(Held, parts)
NSA_DEFINE_JSON(Ended, part)
NSA_DEFINE_JSON(DataFolder, path, digest)
NSA_DEFINE_JSON(FolderOffer, offer, name, files)
NSA_DEFINE_JSON(Preparation, build, run_folder, checkpoint_folder, data, gpus, binds_store, offers,
                texts, open_runs)
NSA_DEFINE_JSON(Prepared, port, is_private, received)
NSA_DEFINE_JSON(Ask, offer, file, offset, bytes, here)
NSA_DEFINE_JSON(Push, path, digest, offer, files)
NSA_DEFINE_JSON(Pushed, offer, ok, what, next, received)
NSA_DEFINE_JSON(NoPiece, offer, why)
NSA_DEFINE_JSON(ProbeOrder, rank, meeting, secret, gpu, interface)
NSA_DEFINE_JSON(ShimIdentity, boot_id, pid, start_time_ticks)
NSA_DEFINE_JSON(NodeGpus, list, new_xids)
NSA_DEFINE_JSON(RankLink, rank, own, peer, waiting_bytes, retransmits)

namespace {
// What a GPU or its driver does not tell is absent.
template <class Visit> void visit_readings(Visit visit) {
  visit("utilization_ratio", &gpu::Gpu::utilization_ratio);
  visit("temperature_celsius", &gpu::Gpu::temperature_celsius);
  visit("power_watts", &gpu::Gpu::power_watts);
  visit("sm_clock_hertz", &gpu::Gpu::sm_clock_hertz);
  visit("ecc_corrected", &gpu::Gpu::ecc_corrected);
  visit("ecc_uncorrected", &gpu::Gpu::ecc_uncorrected);
}
} // namespace

void to_json(nlohmann::json& json, const NodeGpu& value) {
  const gpu::Gpu& gpu = value.gpu;
  json = {{"index", gpu.index},
          {"uuid", gpu.uuid},
          {"name", gpu.name},
          {"memory_bytes", gpu.memory_bytes},
          {"used_bytes", gpu.used_bytes},
          {"processes", gpu.processes},
          {"xids", value.xids},
          {"state", value.state},
          {"run", value.run},
          {"why", value.why}};
  visit_readings([&](const char* key, auto member) {
    if (gpu.*member) json[key] = *(gpu.*member);
  });
}

void from_json(const nlohmann::json& json, NodeGpu& value) {
  gpu::Gpu& gpu = value.gpu;
  json.at("index").get_to(gpu.index);
  json.at("uuid").get_to(gpu.uuid);
  json.at("name").get_to(gpu.name);
  json.at("memory_bytes").get_to(gpu.memory_bytes);
  json.at("used_bytes").get_to(gpu.used_bytes);
  json.at("processes").get_to(gpu.processes);
  json.at("xids").get_to(value.xids);
  json.at("state").get_to(value.state);
  json.at("run").get_to(value.run);
  json.at("why").get_to(value.why);
  visit_readings([&](const char* key, auto member) {
    using Value = typename std::decay_t<decltype(gpu.*member)>::value_type;
    if (const auto found = json.find(key); found != json.end())
      gpu.*member = found->template get<Value>();
  });
}

wire::Frame stream_frame(Message type, uint64_t stream, std::string_view bytes) {
  wire::Frame frame{static_cast<uint8_t>(type), 0, {}};
  frame.body.reserve(sizeof stream + bytes.size());
  frame.body.assign(reinterpret_cast<const char*>(&stream), sizeof stream);
  frame.body += bytes;
  return frame;
}

std::optional<StreamFrame> read_stream_frame(const wire::Frame& frame) {
  StreamFrame read;
  if (frame.body.size() < sizeof read.stream) return std::nullopt;
  std::memcpy(&read.stream, frame.body.data(), sizeof read.stream);
  read.bytes = std::string_view(frame.body).substr(sizeof read.stream);
  return read;
}

wire::Frame piece_frame(const PieceFrame& piece) {
  const uint64_t head[] = {piece.offer, piece.file, piece.offset};
  wire::Frame frame{static_cast<uint8_t>(Message::kPiece), 0, {}};
  frame.body.reserve(sizeof head + piece.bytes.size());
  frame.body.assign(reinterpret_cast<const char*>(head), sizeof head);
  frame.body += piece.bytes;
  return frame;
}

std::optional<PieceFrame> read_piece_frame(const wire::Frame& frame) {
  uint64_t head[3];
  if (frame.body.size() < sizeof head) return std::nullopt;
  std::memcpy(head, frame.body.data(), sizeof head);
  return PieceFrame{head[0], head[1], head[2], frame.body.substr(sizeof head)};
}

std::string build_text() {
  return build_info().version + " (" + build_info().commit + ")";
}

} // namespace nsa::parts
