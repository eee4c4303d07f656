#include "daemon/cluster/messages.h"

namespace nsa::cluster {

NSA_DEFINE_JSON(Join, secret, node, request)
NSA_DEFINE_JSON(Signed, certificate)
NSA_DEFINE_JSON(NodeHello, protocol, build, boot_id, processors, memory_bytes, gpus, cpu_slots, run)
NSA_DEFINE_JSON(Welcome, heartbeat_seconds, lost_seconds)
NSA_DEFINE_JSON(Heartbeat, sent_at, round_trip_ns, clock_offset_ns)
NSA_DEFINE_JSON(HeartbeatReply, sent_at, answered_at)
NSA_DEFINE_JSON(Renew, request)
NSA_DEFINE_JSON(Renewed, serial)
NSA_DEFINE_JSON(Dismissed, what, next, for_good)

} // namespace nsa::cluster
