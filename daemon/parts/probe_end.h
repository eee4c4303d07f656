// One node's end of a measurement of the network: the trainer as `nsa-worker --probe-network`.
// Blocking, bounded in time; any thread.
#pragma once

#include "common/base/unique_fd.h"
#include "common/wire/node_view.h"
#include "daemon/parts/messages.h"

#include <string>

namespace nsa::parts {

// `store`: of rank 0, the listening socket of its store.
Result<wire::NetworkFigures> run_probe_end(const std::string& worker, const ProbeOrder& order,
                                           const UniqueFd& store);

} // namespace nsa::parts
