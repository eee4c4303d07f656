// Collectives between GPUs over c10d's ProcessGroupNCCL. NCCL carries no tags: what a rank has
// enqueued and what has completed is told by c10d's flight recorder and the progress page.
#pragma once

#include "worker/comm/collectives.h"

#include <ATen/Device.h>

namespace nsa::runtime {

Result<std::unique_ptr<comm::Collectives>>
make_nccl_collectives(Rank rank, int world, at::Device device,
                      const comm::RendezvousAddress& address, Duration collective_limit);

std::string nccl_version();

} // namespace nsa::runtime
