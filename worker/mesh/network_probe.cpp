#include "worker/mesh/network_probe.h"

#include <algorithm>
#include <array>

namespace nsa::comm {

namespace {

constexpr int kFewest = 5, kMost = 200;                // exchanges of next to nothing
constexpr size_t kFirst = 1 << 14, kLargest = 1 << 23; // elements: 64 KiB, 32 MiB
// A larger one would say nothing new.
constexpr Duration kLongEnough = std::chrono::milliseconds(300);

class Probe {
public:
  Probe(Mesh& mesh, Rank rank, Duration time)
      : mesh_(mesh), rank_(rank), time_(time), end_(MonotonicTime::now() + time) {}

  tl::expected<NetworkMeasurement, PeerFailure> run() {
    NetworkMeasurement measured;
    if (auto done = measure_latency(measured); !done) return tl::unexpected(done.error());
    if (auto done = measure_bandwidth(measured); !done) return tl::unexpected(done.error());
    return measured;
  }

private:
  // What rank 0 says, on both ranks. Each exchange is one of these, so both go on and end together.
  tl::expected<size_t, PeerFailure> agree(size_t said) {
    std::array<float, 2> words{rank_ == 0 ? static_cast<float>(said) : 0.0F, 0.0F};
    if (auto done = all_reduce(words.data(), words.size()); !done)
      return tl::unexpected(done.error());
    return static_cast<size_t>(words[0]);
  }
  Outcome all_reduce(float* data, size_t elements) {
    return mesh_.all_reduce(data, elements, kFloat32, {++step_, Kind::kGradient, 0})->wait();
  }

  Outcome measure_latency(NetworkMeasurement& measured) {
    const MonotonicTime end = MonotonicTime::now() + time_ / 3;
    std::vector<double> seconds;
    for (size_t goes_on = 1; goes_on != 0;) {
      const MonotonicTime began = MonotonicTime::now();
      const auto count = static_cast<int>(seconds.size());
      const auto agreed = agree(count < kFewest || (count < kMost && began < end) ? 1 : 0);
      if (!agreed) return tl::unexpected(agreed.error());
      goes_on = *agreed;
      seconds.push_back(to_seconds(MonotonicTime::now() - began));
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    measured.latency_seconds = *middle / 2; // sums are reduced, and then gathered
    return {};
  }

  // Each is twice as large as the one before, until it takes long enough; then as many of that size
  // as there is time for.
  Outcome measure_bandwidth(NetworkMeasurement& measured) {
    std::vector<float> data;
    double bytes = 0, seconds = 0;
    Duration last{};
    for (size_t wanted = kFirst;;) {
      const auto agreed = agree(wanted);
      if (!agreed) return tl::unexpected(agreed.error());
      if (*agreed == 0) break;
      if (*agreed != data.size()) {
        bytes = seconds = 0;
        data.assign(*agreed, 0.0F);
      }
      const MonotonicTime began = MonotonicTime::now();
      if (auto done = all_reduce(data.data(), data.size()); !done) return done;
      last = MonotonicTime::now() - began;
      // As many bytes as `data` has go each way, half of them in each phase.
      bytes += static_cast<double>(data.size() * sizeof(float));
      seconds += std::max(to_seconds(last) - 2 * measured.latency_seconds, to_seconds(last) / 2);
      if (last < kLongEnough && wanted < kLargest) wanted *= 2;
      if (MonotonicTime::now() + last > end_) wanted = 0;
    }
    measured.bytes_per_second = seconds > 0 ? bytes / seconds : 0;
    return {};
  }

  Mesh& mesh_;
  Rank rank_;
  Duration time_;
  MonotonicTime end_;
  uint64_t step_ = 0;
};

} // namespace

tl::expected<NetworkMeasurement, PeerFailure> measure_network(Mesh& mesh, Rank rank,
                                                              Duration time) {
  return Probe(mesh, rank, time).run();
}

} // namespace nsa::comm
