// The command line of nsa-worker.
#pragma once

#include "common/base/result.h"
#include "worker/bootstrap/session.h"

#include <string>
#include <vector>

namespace nsa::worker {

// Arguments: --spec A/spec.json --run-folder R --attempt-folder A --run-id x --attempt N --rank r
// --world-size w --rendezvous unix:<folder> | tcp:<host>:<port> [--resume <checkpoint folder>]
// [--without-graphs <why>] [--replaced-data <digest>,...]
// Reads and checks the spec. --rendezvous is optional with one rank.
Result<train::RankOptions> parse_options(const std::vector<std::string>& arguments);

} // namespace nsa::worker
