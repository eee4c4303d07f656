// One node's end of a measurement of the network: runs the trainer as `nsa-worker --probe-network`.
// It blocks for a bounded time. Any thread may call it.
#pragma once

#include "common/base/unique_fd.h"
#include "common/wire/node_view.h"
#include "daemon/parts/messages.h"

#include <string>

namespace nsa::parts {

// `store` is the listening socket of the store, for rank 0.
Result<wire::NetworkFigures> run_probe_end(const std::string& worker, const ProbeOrder& order,
                                           const UniqueFd& store);

} // namespace nsa::parts
