#include "worker/runtime/cuda/nccl_collectives.h"

#include "common/base/log.h"
#include "worker/comm/c10d_store.h"
#include "worker/mesh/leave.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace nsa::runtime {

namespace {

using comm::Outcome;
using comm::PeerFailure;

// Runs c10d code and converts its exceptions. NCCL does not say which rank is at fault.
template <class Body> Outcome guarded(const std::string& doing, Body body) {
  try {
    body();
    return {};
  } catch (const std::exception& e) {
    return tl::unexpected(PeerFailure{doing + " failed: " + e.what(), std::nullopt});
  }
}

class NcclPending : public comm::Pending {
public:
  NcclPending(at::Tensor tensor, c10::intrusive_ptr<c10d::Work> work, std::string doing)
      : tensor_(std::move(tensor)), work_(std::move(work)), doing_(std::move(doing)) {}
  // Orders later work of the current stream after the collective; the host does not wait.
  Outcome wait() override {
    return guarded(doing_, [this] { work_->wait(); });
  }

private:
  at::Tensor tensor_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string doing_;
};

class FailedPending : public comm::Pending {
public:
  explicit FailedPending(Outcome outcome) : outcome_(std::move(outcome)) {}
  Outcome wait() override { return outcome_; }

private:
  Outcome outcome_;
};

class NcclCollectives : public comm::Collectives {
public:
  NcclCollectives(Rank rank, int world, at::Device device, std::shared_ptr<comm::Store> store,
                  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : rank_(rank), world_(world), device_(device), store_(std::move(store)),
        group_(std::move(group)) {}

  Rank rank() const override { return rank_; }
  int world() const override { return world_; }

  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag tag) override {
    return start(tensor, tag, [&] {
      std::vector<at::Tensor> tensors = {tensor};
      return group_->allreduce(tensors);
    });
  }
  // NCCL's in-place rule: the rank's chunk must be at its offset in the whole tensor.
  std::unique_ptr<comm::Pending> reduce_scatter_sum(const at::Tensor& tensor,
                                                    comm::Tag tag) override {
    return start(tensor, tag, [&] {
      at::Tensor whole = tensor, own = chunk_of(tensor);
      return group_->_reduce_scatter_base(own, whole);
    });
  }
  std::unique_ptr<comm::Pending> all_gather(const at::Tensor& tensor, comm::Tag tag) override {
    return start(tensor, tag, [&] {
      at::Tensor whole = tensor, own = chunk_of(tensor);
      return group_->_allgather_base(whole, own);
    });
  }

  // Uses the communicator of all ranks. This rank exchanges zero elements with itself and with
  // ranks outside the range.
  std::unique_ptr<comm::Pending> all_to_all(const at::Tensor& out, const at::Tensor& in,
                                            comm::RankRange range, comm::Tag tag) override {
    return start(out, tag, [&] {
      std::vector<int64_t> splits(static_cast<size_t>(world_), 0);
      for (Rank other = range.first; other < range.first + range.count; ++other)
        if (other != rank_) splits[static_cast<size_t>(other)] = out.numel() / (range.count - 1);
      at::Tensor from = out, into = in;
      return group_->alltoall_base(into, from, splits, splits);
    });
  }

  Outcome broadcast(const at::Tensor& tensor, Rank root, comm::Tag tag) override {
    return guarded(comm::describe(tag), [&] {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(tensors, options)->wait();
    });
  }

  Outcome barrier(comm::Tag tag) override {
    return guarded(comm::describe(tag), [&] {
      std::vector<at::Tensor> tensors = {
          at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_))};
      group_->allreduce(tensors)->wait();
      c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    });
  }

  std::string flight_record() const override {
    return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
  }

  // The destructor alone would leave communicators and their threads running, and the process would
  // hang at exit. Ranks meet in the store and not in a collective, because a collective would wait
  // for a dead peer until its time-out.
  void shut_down() override {
    const auto rendezvous = comm::rendezvous_over(store_);
    const Status left = comm::take_leave(*rendezvous, rank_, world_, comm::kMostLeaveTime);
    if (left) {
      group_->shutdown();
    } else {
      log::warning("nccl", left.error().what + "; leaving without");
      group_->abort();
    }
  }

private:
  at::Tensor chunk_of(const at::Tensor& tensor) const {
    TORCH_CHECK(tensor.dim() == 1 && tensor.numel() % world_ == 0, "a tensor of ", tensor.sizes(),
                " cannot be cut into ", world_, " equal chunks");
    const int64_t count = tensor.numel() / world_;
    return tensor.narrow(0, rank_ * count, count);
  }
  template <class Begin>
  static std::unique_ptr<comm::Pending> start(const at::Tensor& tensor, const comm::Tag& tag,
                                              Begin begin) {
    const std::string doing = comm::describe(tag);
    c10::intrusive_ptr<c10d::Work> work;
    Outcome started = guarded(doing, [&] { work = begin(); });
    if (!started) return std::make_unique<FailedPending>(std::move(started));
    return std::make_unique<NcclPending>(tensor, std::move(work), doing);
  }

  Rank rank_;
  int world_;
  at::Device device_;
  std::shared_ptr<comm::Store> store_; // rank 0 serves it while the group exists
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

} // namespace

std::string nccl_version() {
  return c10d::getNcclVersion();
}

Result<std::unique_ptr<comm::Collectives>>
make_nccl_collectives(Rank rank, int world, at::Device device,
                      const comm::RendezvousAddress& address, Duration collective_limit) {
  // c10d reads it when the group is made. A value from the run file or the node has precedence.
  const auto heartbeat =
      std::chrono::duration_cast<std::chrono::seconds>(comm::heartbeat_limit(collective_limit));
  ::setenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", std::to_string(heartbeat.count()).c_str(),
           /*overwrite=*/0);
  // Turns the flight recorder on, as the toggle nccl.trace_buffer does, whatever c10d's default is.
  // c10d reads the variable when the group is made. It is unset afterwards, so that the toggle's
  // report shows what was requested.
  constexpr const char* kRecorder = "TORCH_FR_BUFFER_SIZE";
  const bool unset = std::getenv(kRecorder) == nullptr;
  if (unset) ::setenv(kRecorder, "2000", /*overwrite=*/1);
  const auto take_back = [unset](const void*) {
    if (unset) ::unsetenv(kRecorder);
  };
  const std::unique_ptr<const void, decltype(take_back)> restored(kRecorder, take_back);
  NSA_TRY_ASSIGN(auto store, comm::Store::open(rank, address));
  try {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(collective_limit);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        comm::c10d_store_over(store, address.limit), rank, world, options);
    auto collectives =
        std::make_unique<NcclCollectives>(rank, world, device, std::move(store), std::move(group));
    // The first collective makes the communicators. It runs here, in start-up, and not in the first
    // step.
    if (auto met = collectives->barrier({0, comm::Kind::kBarrier, 0}); !met)
      return fail(ErrorCode::kUnavailable, "NCCL: " + met.error().what);
    return std::unique_ptr<comm::Collectives>(std::move(collectives));
  } catch (const std::exception& e) {
    return fail(ErrorCode::kUnavailable, std::string("NCCL cannot be set up: ") + e.what());
  }
}

} // namespace nsa::runtime
