// Messages between a head and a node about parts: the ranks of an attempt on that node, with their
// shim. They are frames of the cluster's links, in addition to its own (cluster/messages.h).
// docs/design/several-nodes.md says who asks when.
//
//   head -> node   Call; Bytes, Closed; Piece, NoPiece; Push
//   node -> head   Held after each welcome; Answer; Ended; Bytes, Closed, Progress; Ask;
//                  Pushed; Gpus
#pragma once

#include "common/base/choice.h"
#include "common/base/ids.h"
#include "common/progress/page.h"
#include "common/transfer/receive.h"
#include "common/wire/frame.h"
#include "common/wire/gpu_view.h"
#include "common/wire/json_members.h"
#include "daemon/cluster/messages.h"
#include "daemon/gpu/nvml.h"
#include "daemon/state/rank_sample.h"

#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace nsa::parts {

enum class Message : uint8_t {
  kCall = cluster::kFirstForeignFrame,
  kAnswer,
  kHeld,
  kEnded,
  kBytes,   // for a connection to a shim: number of the stream, then the bytes
  kClosed,  // the number alone: one end has closed the stream
  kPages,   // whole pages of ranks, sent by older builds; ignored
  kAsk,     // requests a piece of a file that the head offers
  kPiece,   // the piece's bytes
  kNoPiece, // why the piece is not sent
  kPush,    // the node is to fetch a data set
  kPushed,  // the node has fetched it, or why not
  kGpus,    // the node's GPUs: after each welcome, and each time they are read
  kProgress // number of the stream, then for each rank a PageRecord and the changes of its page
};

enum class CallKind : uint8_t {
  kPrepare,   // can the part be started? It ends older attempts of the run
  kStart,     // starts the part's shim, or finds the shim that was started for this very attempt
  kOpen,      // connects a stream to its shim
  kLeftovers, // kills what a lost shim left behind; answers how many processes were signalled
  kExits,     // the exits of its ranks that have ended
  kEnd,       // kills shim and ranks
  kBind,      // binds a port for the store of a probe. kBind and kProbe are about no part
  kProbe,     // measures the network to the node of the other rank
  kLinks,     // the TCP connections of the part's ranks (network_fault.h)
};
constexpr auto choice_names(CallKind) {
  return names_of("prepare", "start", "open", "leftovers", "exits", "end", "bind", "probe",
                  "links");
}

struct PartRef {
  RunId run;
  AttemptNumber attempt = 0;
};
struct Call {
  uint64_t id = 0;
  CallKind what = CallKind::kPrepare;
  PartRef part;
  nlohmann::json body;
};
struct Answer {
  uint64_t id = 0;
  bool ok = true;
  int code = 0; // an ErrorCode
  std::string what, next;
  nlohmann::json body;
  // The call is refused because ranks of this newer attempt of the run are here.
  AttemptNumber newer = 0;
};
struct Held { // parts whose shims live, or whose end the head does not know yet
  std::vector<PartRef> parts;
};
struct Ended {
  PartRef part;
};
NSA_DECLARE_JSON(PartRef);
NSA_DECLARE_JSON(Call);
NSA_DECLARE_JSON(Answer);
NSA_DECLARE_JSON(Held);
NSA_DECLARE_JSON(Ended);

// The head's question to a node before anything is started.
struct DataFolder {
  std::string path, digest;
};
// A folder that the node fetches if it does not see the run's folder itself.
struct FolderOffer {
  uint64_t offer = 0;
  std::string name; // below the run's folder: "checkpoints/step-00000020"
  std::vector<transfer::File> files;
};
struct Preparation {
  std::string build, run_folder, checkpoint_folder;
  std::vector<DataFolder> data;  // a mixture has several
  std::vector<std::string> gpus; // UUIDs of the part's GPUs; the node leases them
  bool binds_store = false;      // the node has rank 0: its answer holds the port of the store
  std::vector<FolderOffer> offers;
  std::map<std::string, std::string> texts; // small files of the run's folder, by name
  std::vector<RunId> open_runs;             // the node may delete fetched files of other runs
};
struct Prepared {
  uint16_t port = 0;       // port of the store
  bool is_private = false; // the node does not see the run's folder, and has a folder of its own
  transfer::Received received;
};
// The answer to kStart.
struct ShimIdentity {
  std::string boot_id;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};
// One end of a measurement of the network. Rank 0 has the store; its answer is a NetworkFigures.
struct ProbeOrder {
  Rank rank = 0;
  std::string meeting, secret;
  std::string gpu;       // UUID for a measurement over NCCL, between GPUs; empty: over TCP
  std::string interface; // interface for NCCL; empty: as configured for this node's nsad
};
// Stands for the run that leases a GPU while a probe uses it.
inline constexpr const char* kProbeLease = "network-probe";
NSA_DECLARE_JSON(ProbeOrder);
NSA_DECLARE_JSON(DataFolder);
NSA_DECLARE_JSON(FolderOffer);
NSA_DECLARE_JSON(Preparation);
NSA_DECLARE_JSON(Prepared);
NSA_DECLARE_JSON(ShimIdentity);

struct Ask {
  uint64_t offer = 0;
  uint64_t file = 0; // index in the offer's list
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint64_t here = 0; // bytes of the whole offer that the node has
};
struct NoPiece {
  uint64_t offer = 0;
  std::string why;
};
// A data set for the node, under the same path as on the head.
struct Push {
  std::string path, digest;
  uint64_t offer = 0;
  std::vector<transfer::File> files;
};
struct Pushed {
  uint64_t offer = 0;
  bool ok = true;
  std::string what, next;
  transfer::Received received;
};
NSA_DECLARE_JSON(Push);
NSA_DECLARE_JSON(Pushed);
NSA_DECLARE_JSON(Ask);
NSA_DECLARE_JSON(NoPiece);

// A node's report of a GPU.
struct NodeGpu {
  gpu::Gpu gpu;
  std::vector<uint64_t> xids; // Xid errors that its driver has reported since its nsad was started
  wire::GpuStatus state = wire::GpuStatus::kFree; // as that nsad sees it
  RunId run;                                      // the run that has leased it there
  std::string why;                                // reason of its state
};
struct NodeGpus {
  std::vector<NodeGpu> list;
  // UUID and number, since the last message.
  std::vector<std::pair<std::string, uint64_t>> new_xids;
};
NSA_DECLARE_JSON(NodeGpu);
NSA_DECLARE_JSON(NodeGpus);

// A TCP connection of a rank (daemon/proc/tcp_links.h).
struct RankLink {
  Rank rank = 0;
  std::string own, peer; // addresses
  uint64_t waiting_bytes = 0;
  int retransmits = 0;
};
NSA_DECLARE_JSON(RankLink);

// The records that it announces follow it, in this order: the changes of the rank's page since the
// last message. Both ends have the same build, which Preparation checks.
struct PageRecord {
  Rank rank = 0;
  bool has_host = false, has_device = false; // whether a HostRecord and a DeviceRecord follow
  uint16_t collectives = 0;                  // number of Collective records that follow
  int64_t monotonic_ns = 0;                  // by the node's clock, when the page was read
  state::ProcessReading process;             // set only if the rank's page has not changed
};
static_assert(std::is_trivially_copyable_v<PageRecord>);
static_assert(std::is_trivially_copyable_v<progress::HostRecord>);
static_assert(std::is_trivially_copyable_v<progress::DeviceRecord>);
static_assert(std::is_trivially_copyable_v<progress::Collective>);

template <class T> wire::Frame frame_of(Message type, const T& message) {
  return {static_cast<uint8_t>(type), 0,
          nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}
// A frame of a stream: its number, then bytes.
wire::Frame stream_frame(Message type, uint64_t stream, std::string_view bytes = {});
struct StreamFrame {
  uint64_t stream = 0;
  std::string_view bytes;
};
std::optional<StreamFrame> read_stream_frame(const wire::Frame& frame);

struct PieceFrame {
  uint64_t offer = 0, file = 0, offset = 0;
  std::string bytes;
};
wire::Frame piece_frame(const PieceFrame& piece);
std::optional<PieceFrame> read_piece_frame(const wire::Frame& frame);

std::string build_text(); // build of this program

} // namespace nsa::parts
