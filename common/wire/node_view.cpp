#include "common/wire/node_view.h"

namespace nsa::wire {

NSA_DEFINE_JSON(NetworkFigures, latency_seconds, bytes_per_second, by)
NSA_DEFINE_JSON(NetworkLink, node, figures, measured_at)
NSA_DEFINE_JSON(NetworkProbeRequest, with, cpu, interface)
NSA_DEFINE_JSON(NetworkProbe, node, with, state, figures, measured_at, problem, next)
NSA_DEFINE_JSON(NodeView, name, role, state, address, problem, build, boot_id, processors,
                cpu_slots, run, memory_bytes, gpus, joined_at, certificate_expires_at, heard_at,
                drained_at, removed_at, clock_offset_seconds, round_trip_seconds, network)
NSA_DEFINE_JSON(NodeToken, token, head, expires_at)
NSA_DEFINE_JSON(DataPushRequest, path)
NSA_DEFINE_JSON(DataPush, node, path, digest, state, here_bytes, total_bytes, fetched_bytes,
                damaged, seconds, problem, next)

} // namespace nsa::wire
