#include "worker/mesh/network_probe.h"

#include <algorithm>
#include <vector>

namespace nsa::comm {

namespace {

constexpr size_t kNextToNothing = 2;                   // elements
constexpr int kFewest = 5, kMost = 200;                // number of minimal exchanges
constexpr size_t kFirst = 1 << 14, kLargest = 1 << 23; // elements: 64 KiB, 32 MiB
// Once an exchange takes this long, a larger size would add no information.
constexpr Duration kLongEnough = std::chrono::milliseconds(300);

class Probe {
public:
  Probe(SumExchange& sums, Rank rank, Duration time)
      : sums_(sums), rank_(rank), time_(time), end_(MonotonicTime::now() + time) {}

  tl::expected<NetworkMeasurement, PeerFailure> run() {
    NetworkMeasurement measured;
    if (auto done = measure_latency(measured); !done) return tl::unexpected(done.error());
    if (auto done = measure_bandwidth(measured); !done) return tl::unexpected(done.error());
    return measured;
  }

private:
  // Returns rank 0's value on both ranks, so that they continue and stop together.
  tl::expected<size_t, PeerFailure> agree(size_t said) {
    const auto sum = sums_.sum(rank_ == 0 ? static_cast<float>(said) : 0.0F);
    if (!sum) return tl::unexpected(sum.error());
    return static_cast<size_t>(*sum);
  }
  tl::expected<Duration, PeerFailure> timed_exchange() {
    const MonotonicTime began = MonotonicTime::now();
    if (auto done = sums_.exchange(); !done) return tl::unexpected(done.error());
    return MonotonicTime::now() - began;
  }

  Outcome measure_latency(NetworkMeasurement& measured) {
    const MonotonicTime end = MonotonicTime::now() + time_ / 3;
    std::vector<double> seconds;
    sums_.resize(kNextToNothing);
    while (true) {
      const auto count = static_cast<int>(seconds.size());
      const bool wants = count < kFewest || (count < kMost && MonotonicTime::now() < end);
      const auto goes_on = agree(wants ? 1 : 0);
      if (!goes_on) return tl::unexpected(goes_on.error());
      if (*goes_on == 0) break;
      const auto took = timed_exchange();
      if (!took) return tl::unexpected(took.error());
      seconds.push_back(to_seconds(*took));
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    measured.latency_seconds = *middle / 2; // an all-reduce is a reduce-scatter and an all-gather
    return {};
  }

  // Doubles the size until an exchange takes kLongEnough, then repeats that size for the remaining
  // time.
  Outcome measure_bandwidth(NetworkMeasurement& measured) {
    double bytes = 0, seconds = 0;
    size_t elements = 0;
    for (size_t wanted = kFirst;;) {
      const auto agreed = agree(wanted);
      if (!agreed) return tl::unexpected(agreed.error());
      if (*agreed == 0) break;
      if (*agreed != elements) {
        elements = *agreed;
        bytes = seconds = 0;
        sums_.resize(elements);
      }
      const auto took = timed_exchange();
      if (!took) return tl::unexpected(took.error());
      // Each direction carries all bytes once: half in the reduce-scatter, half in the all-gather.
      bytes += static_cast<double>(elements * sizeof(float));
      seconds += std::max(to_seconds(*took) - 2 * measured.latency_seconds, to_seconds(*took) / 2);
      if (*took < kLongEnough && wanted < kLargest) wanted *= 2;
      if (MonotonicTime::now() + *took > end_) wanted = 0;
    }
    measured.bytes_per_second = seconds > 0 ? bytes / seconds : 0;
    return {};
  }

  SumExchange& sums_;
  Rank rank_;
  Duration time_;
  MonotonicTime end_;
};

} // namespace

tl::expected<NetworkMeasurement, PeerFailure> measure_network(SumExchange& exchange, Rank rank,
                                                              Duration time) {
  return Probe(exchange, rank, time).run();
}

} // namespace nsa::comm
