#include "common/wire/gpu_view.h"

namespace nsa::wire {

NSA_DEFINE_JSON(GpuView, node, index, uuid, name, memory_bytes, state, run, why, quarantined_at,
                quarantined_by_run)

} // namespace nsa::wire
