// nsa-worker --probe-network: no rank of a run, but one end of a measurement between two nodes.
#pragma once

#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::worker {

bool is_probe(const std::vector<std::string>& arguments);

// --probe-network RANK --rendezvous tcp:HOST:PORT --device cpu|cuda, and the secret in
// NSAD_ATTEMPT. On CUDA the first GPU that it sees takes part, over NCCL. Rank 0 may have been
// handed a listening socket, as in a run. The result is one line of JSON.
Result<std::string> run_probe(const std::vector<std::string>& arguments);

} // namespace nsa::worker
