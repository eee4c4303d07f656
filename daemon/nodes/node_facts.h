// The facts that a node reports to its head, and that the head reads for its own node. Call it from
// any thread.
#pragma once

#include "daemon/cluster/messages.h"

namespace nsa::control {

// Reads all facts except the GPUs, because a driver may take seconds to list them.
cluster::NodeHello read_node_facts();

} // namespace nsa::control
