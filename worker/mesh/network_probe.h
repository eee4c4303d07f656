// Measures what the collectives of training get between two ranks, for `nsactl node probe`.
#pragma once

#include "worker/mesh/mesh.h"

namespace nsa::comm {

struct NetworkMeasurement {
  double latency_seconds = 0;  // of a message, one way: half of an all-reduce of next to nothing
  double bytes_per_second = 0; // in each direction, while both ranks send
};

// How two ranks exchange sums. Both do the same in the same order.
class SumExchange {
public:
  virtual ~SumExchange() = default;
  // Of what the two ranks say.
  virtual tl::expected<float, PeerFailure> sum(float said) = 0;
  // What exchange() adds up: zeros. Takes the time that is not to be measured.
  virtual void resize(size_t elements) = 0;
  virtual Outcome exchange() = 0; // returns when the sums are there
};

// On both of two ranks. Takes about `time`, or longer where one exchange does. Rank 0 decides how
// much is sent; both get the result of their own clock.
tl::expected<NetworkMeasurement, PeerFailure>
measure_network(SumExchange& exchange, Rank rank, Duration time = std::chrono::seconds(3));

} // namespace nsa::comm
