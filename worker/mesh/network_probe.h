// Measures what the collectives of training get between two ranks, for `nsactl node probe`.
#pragma once

#include "worker/mesh/mesh.h"

namespace nsa::comm {

struct NetworkMeasurement {
  double latency_seconds = 0;  // of a message, one way: half of an all-reduce of next to nothing
  double bytes_per_second = 0; // in each direction, while both ranks send
};

// On both ranks of a mesh of two that has done nothing but barriers. Takes about `time`, or longer
// where one exchange does. Rank 0 decides how much is sent; both get the result of their own clock.
tl::expected<NetworkMeasurement, PeerFailure>
measure_network(Mesh& mesh, Rank rank, Duration time = std::chrono::seconds(3));

} // namespace nsa::comm
