// What a node says of itself to its head, and the head of its own node. Any thread.
#pragma once

#include "daemon/cluster/messages.h"

namespace nsa::control {

// All but the GPUs, which a driver may take seconds to list.
cluster::NodeHello read_node_facts();

} // namespace nsa::control
