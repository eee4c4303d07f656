// nsa-worker --probe-network is no rank of a run. It is one end of a measurement between two nodes.
#pragma once

#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::worker {

bool is_probe(const std::vector<std::string>& arguments);

// Arguments: --probe-network RANK --rendezvous tcp:HOST:PORT --device cpu|cuda, and the secret in
// NSAD_ATTEMPT. With cuda it uses the first visible GPU, over NCCL. Rank 0 may inherit a listening
// socket, as in a run. The result is one line of JSON.
Result<std::string> run_probe(const std::vector<std::string>& arguments);

} // namespace nsa::worker
