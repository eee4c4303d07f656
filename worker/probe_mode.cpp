#include "worker/probe_mode.h"

#include "common/base/json.h"
#include "common/wire/launch_plan.h"
#include "worker/comm/collectives.h"
#include "worker/mesh/network_probe.h"
#include "worker/runtime/runtime.h"

#include <ATen/ops/zeros.h>
#include <cstdlib>

namespace nsa::worker {

namespace {

constexpr std::string_view kProbe = "--probe-network";
// No training waits on these nodes, so the limits are short. Loading a GPU's libraries takes
// seconds, perhaps on only one of the two nodes.
constexpr Duration kConnectLimit = std::chrono::seconds(10), kLimit = std::chrono::seconds(20);
constexpr Duration kGpuConnectLimit = std::chrono::seconds(25);

// Uses the same collectives as a run's ranks, on the same device.
class OverCollectives final : public comm::SumExchange {
public:
  OverCollectives(runtime::Runtime& runtime, comm::Collectives& collectives)
      : runtime_(runtime), collectives_(collectives), words_(zeros(2)) {}

  tl::expected<float, comm::PeerFailure> sum(float said) override {
    words_.fill_(said);
    if (auto done = add_up(words_); !done) return tl::unexpected(done.error());
    return words_[0].item<float>();
  }
  void resize(size_t elements) override {
    data_ = zeros(static_cast<int64_t>(elements));
    runtime_.synchronize();
  }
  comm::Outcome exchange() override { return add_up(data_); }

private:
  at::Tensor zeros(int64_t elements) const {
    return at::zeros({elements}, at::TensorOptions().dtype(at::kFloat).device(runtime_.device()));
  }
  comm::Outcome add_up(const at::Tensor& tensor) {
    auto done = collectives_.all_reduce_sum(tensor, {++step_, comm::Kind::kGradient, 0})->wait();
    runtime_.synchronize();
    return done;
  }

  runtime::Runtime& runtime_;
  comm::Collectives& collectives_;
  at::Tensor words_, data_;
  uint64_t step_ = 0;
};

struct Order {
  Rank rank = 0;
  spec::Device device = spec::Device::kCpu;
  comm::RendezvousAddress address;
};

Result<Order> read_order(const std::vector<std::string>& arguments) {
  const bool is_usual = arguments.size() == 6 && arguments[2] == "--rendezvous" &&
                        (arguments[1] == "0" || arguments[1] == "1") && arguments[4] == "--device";
  const auto device = is_usual ? choice_from<spec::Device>(arguments[5]) : std::nullopt;
  if (!device || device == spec::Device::kAuto)
    return fail(ErrorCode::kInvalidArgument, "a probe has a rank, a rendezvous and a device",
                "usage: nsa-worker --probe-network 0|1 --rendezvous tcp:HOST:PORT --device "
                "cpu|cuda");
  Order order;
  order.rank = arguments[1] == "0" ? 0 : 1;
  order.device = *device;
  NSA_TRY_ASSIGN(order.address, comm::parse_rendezvous(arguments[3]));
  const char* secret = std::getenv(wire::kAttemptMark);
  if (!order.address.tcp || secret == nullptr || *secret == '\0')
    return fail(ErrorCode::kInvalidArgument, std::string("a probe meets over TCP, with a secret "
                                                         "in ") +
                                                 wire::kAttemptMark);
  order.address.secret = secret;
  order.address.limit = order.device == spec::Device::kCuda ? kGpuConnectLimit : kConnectLimit;
  if (order.rank == 0) order.address.listen_fd = wire::kRankStoreFd;
  return order;
}

} // namespace

bool is_probe(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments.front() == kProbe;
}

static Result<std::string> measure(const Order& order) {
  runtime::Request request;
  request.device = order.device;
  NSA_TRY_ASSIGN(const std::unique_ptr<runtime::Runtime> runtime, runtime::open_runtime(request));
  NSA_TRY_ASSIGN(const std::unique_ptr<comm::Collectives> collectives,
                 runtime->make_collectives(order.rank, 2, order.address, kLimit));
  OverCollectives exchange(*runtime, *collectives);
  const auto measured = comm::measure_network(exchange, order.rank);
  if (!measured) return fail(ErrorCode::kUnavailable, measured.error().what);
  // Neither end may close while the other is in its last exchange.
  (void)collectives->barrier({0, comm::Kind::kBarrier, 1});
  collectives->shut_down();
  const nlohmann::json result = {{"latency_seconds", measured->latency_seconds},
                                 {"bytes_per_second", measured->bytes_per_second}};
  return result.dump() + "\n";
}

Result<std::string> run_probe(const std::vector<std::string>& arguments) {
  NSA_TRY_ASSIGN(const Order order, read_order(arguments));
  try {
    return measure(order);
  } catch (const std::exception& e) { // thrown by LibTorch
    return fail(ErrorCode::kUnavailable, e.what());
  }
}

} // namespace nsa::worker
