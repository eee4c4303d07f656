#include "daemon/parts/messages.h"

#include "daemon/gpu/gpu_json.h"

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

void to_json(nlohmann::json& json, const NodeGpu& value) {
  json = value.gpu;
  json.update(
      {{"xids", value.xids}, {"state", value.state}, {"run", value.run}, {"why", value.why}});
}

void from_json(const nlohmann::json& json, NodeGpu& value) {
  json.get_to(value.gpu);
  json.at("xids").get_to(value.xids);
  json.at("state").get_to(value.state);
  json.at("run").get_to(value.run);
  json.at("why").get_to(value.why);
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
