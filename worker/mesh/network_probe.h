// Measures latency and bandwidth of training's collectives between two ranks, for `nsactl node
// probe`.
#pragma once

#include "worker/mesh/mesh.h"

namespace nsa::comm {

struct NetworkMeasurement {
  double latency_seconds = 0;  // one-way latency: half the time of a minimal all-reduce
  double bytes_per_second = 0; // rate in each direction while both ranks send
};

// All-reduce between two ranks. Both make the same calls in the same order.
class SumExchange {
public:
  virtual ~SumExchange() = default;
  // Returns the sum of both ranks' values.
  virtual tl::expected<float, PeerFailure> sum(float said) = 0;
  // Allocates the zeros that exchange() sums. This time is not measured.
  virtual void resize(size_t elements) = 0;
  virtual Outcome exchange() = 0; // returns when the sums have arrived
};

// Call it on both ranks. It takes about `time`, or longer if a single exchange does. Rank 0 decides
// how much is sent; each rank gets the result of its own clock.
tl::expected<NetworkMeasurement, PeerFailure>
measure_network(SumExchange& exchange, Rank rank, Duration time = std::chrono::seconds(3));

} // namespace nsa::comm
