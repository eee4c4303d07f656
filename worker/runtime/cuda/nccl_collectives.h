// Collectives between GPUs over c10d's ProcessGroupNCCL. NCCL has no tags. c10d's flight recorder
// and the progress page say what a rank has enqueued and what has completed.
#pragma once

#include "worker/comm/collectives.h"

#include <ATen/Device.h>

namespace nsa::runtime {

Result<std::unique_ptr<comm::Collectives>>
make_nccl_collectives(Rank rank, int world, at::Device device,
                      const comm::RendezvousAddress& address, Duration collective_limit);

std::string nccl_version();

} // namespace nsa::runtime
