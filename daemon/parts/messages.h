// What a head and a node say about parts: the ranks of an attempt on that node, with their shim.
// Frames of the cluster's links, above its own (cluster/messages.h). docs/design/several-nodes.md
// says who asks when.
//
//   head -> node   Call; Bytes, Closed; Piece, NoPiece; Push
//   node -> head   Held after each welcome; Answer; Ended; Bytes, Closed, Progress; Ask; Pushed;
//   Gpus
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
  kBytes,   // of a connection to a shim: number of the stream, then the bytes
  kClosed,  // the same without bytes: one end has closed it
  kPages,   // of older builds: whole pages of ranks. Nobody reads it
  kAsk,     // for a piece of a file that the head offers
  kPiece,   // its bytes
  kNoPiece, // why it is not sent
  kPush,    // the node is to fetch a data set
  kPushed,  // it has, or why not
  kGpus,    // the node's GPUs: after each welcome, and as they are read anew
  kProgress // number of the stream, then of each rank a PageRecord and what is new on its page
};

enum class CallKind : uint8_t {
  kPrepare,   // can the part be started? Ends older attempts of the run
  kStart,     // starts its shim, or finds the one that was started for this very attempt
  kOpen,      // connects a stream to its shim
  kLeftovers, // ends what a lost shim left behind; how many processes were signalled
  kExits,     // how its ranks ended, of those that have
  kEnd,       // ends shim and ranks
  kBind,      // a port for the store of a probe. This and the next are about no part
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
  int code = 0; // ErrorCode
  std::string what, next;
  nlohmann::json body;
  AttemptNumber newer = 0; // refused, since ranks of this newer attempt of the run are here
};
struct Held { // parts whose shims live, or whose end the head has not heard
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

// What a head asks a node before anything is started.
struct DataFolder {
  std::string path, digest;
};
// A folder that the node fetches where it does not see the run's folder itself.
struct FolderOffer {
  uint64_t offer = 0;
  std::string name; // below the run's folder: "checkpoints/step-00000020"
  std::vector<transfer::File> files;
};
struct Preparation {
  std::string build, run_folder, checkpoint_folder;
  std::vector<DataFolder> data;  // of a mixture several
  std::vector<std::string> gpus; // that the part computes on, by UUID: the node leases them
  bool binds_store = false;      // this node has rank 0: its answer has the port of the store
  std::vector<FolderOffer> offers;
  std::map<std::string, std::string> texts; // small files of the run's folder, by name
  std::vector<RunId> open_runs;             // what is fetched of others may go
};
struct Prepared {
  uint16_t port = 0;       // of the store
  bool is_private = false; // it does not see the run's folder, and has a folder of its own
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
  std::string gpu;       // by UUID: over NCCL, between GPUs; empty: over TCP
  std::string interface; // that NCCL is to use; empty: as this node's nsad has it
};
// Who has a GPU while a probe uses it, where a run would stand.
inline constexpr const char* kProbeLease = "network-probe";
NSA_DECLARE_JSON(ProbeOrder);
NSA_DECLARE_JSON(DataFolder);
NSA_DECLARE_JSON(FolderOffer);
NSA_DECLARE_JSON(Preparation);
NSA_DECLARE_JSON(Prepared);
NSA_DECLARE_JSON(ShimIdentity);

struct Ask {
  uint64_t offer = 0;
  uint64_t file = 0; // its place in the offer's list
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

// What a node says of its GPUs.
struct NodeGpu {
  gpu::Gpu gpu;
  std::vector<uint64_t> xids; // that its driver has reported since its nsad was started
  wire::GpuStatus state = wire::GpuStatus::kFree; // as that nsad sees it
  RunId run;                                      // that has leased it there
  std::string why;                                // of its state
};
struct NodeGpus {
  std::vector<NodeGpu> list;
  std::vector<std::pair<std::string, uint64_t>> new_xids; // UUID, number: since the last message
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

// Behind it follow the records that it says, in this order: what has changed on the rank's page
// since the last message. Both ends are of one build, which Preparation makes sure of.
struct PageRecord {
  Rank rank = 0;
  bool has_host = false, has_device = false; // a HostRecord, a DeviceRecord
  uint16_t collectives = 0;                  // Collectives
  int64_t monotonic_ns = 0;                  // of the node's clock, as this was read
  state::ProcessReading process;             // only of a rank whose page has not changed
};
static_assert(std::is_trivially_copyable_v<PageRecord>);
static_assert(std::is_trivially_copyable_v<progress::HostRecord>);
static_assert(std::is_trivially_copyable_v<progress::DeviceRecord>);
static_assert(std::is_trivially_copyable_v<progress::Collective>);

template <class T> wire::Frame frame_of(Message type, const T& message) {
  return {static_cast<uint8_t>(type), 0,
          nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}
// Of a stream: its number, then bytes.
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

std::string build_text(); // of this program

} // namespace nsa::parts
