#include "worker/comm/collectives.h"

#include "worker/mesh/store.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <stdexcept>

namespace nsa::comm {

namespace {

// Adds 16-bit gradients in FP32 and rounds once, so rounding does not accumulate with the number of
// ranks.
template <class T>
void sum_rounded_once(void* into, const void* const* parts, size_t part_count, size_t elements) {
  T* result = static_cast<T*>(into);
  for (size_t i = 0; i < elements; ++i) {
    float total = static_cast<float>(static_cast<const T*>(parts[0])[i]);
    for (size_t p = 1; p < part_count; ++p)
      total += static_cast<float>(static_cast<const T*>(parts[p])[i]);
    result[i] = static_cast<T>(total);
  }
}

ElementType element_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
  case at::kFloat:
    return kFloat32;
  case at::kDouble:
    return kFloat64;
  case at::kBFloat16:
    return {2, sum_rounded_once<c10::BFloat16>};
  case at::kHalf:
    return {2, sum_rounded_once<c10::Half>};
  default:
    throw std::invalid_argument(std::string("no all-reduce for tensors of ") +
                                c10::toString(tensor.scalar_type()));
  }
}

void check(const at::Tensor& tensor, int64_t chunks = 1) {
  if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.numel() % chunks != 0)
    throw std::invalid_argument("collectives between CPU ranks take contiguous CPU tensors of "
                                "equal chunks");
}

// Keeps the tensors alive while the mesh uses their memory.
class TensorPending : public Pending {
public:
  TensorPending(std::vector<at::Tensor> tensors, std::unique_ptr<Pending> pending)
      : tensors_(std::move(tensors)), pending_(std::move(pending)) {}
  Outcome wait() override { return pending_->wait(); }

private:
  std::vector<at::Tensor> tensors_;
  std::unique_ptr<Pending> pending_;
};

class CpuCollectives : public Collectives {
public:
  CpuCollectives(Rank rank, int world, std::unique_ptr<Mesh> mesh)
      : rank_(rank), world_(world), mesh_(std::move(mesh)) {}
  Rank rank() const override { return rank_; }
  int world() const override { return world_; }

  std::unique_ptr<Pending> all_reduce_sum(const at::Tensor& tensor, Tag tag) override {
    check(tensor);
    auto pending = mesh_->all_reduce(tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                                     element_type(tensor), tag);
    return std::make_unique<TensorPending>(std::vector{tensor}, std::move(pending));
  }
  std::unique_ptr<Pending> reduce_scatter_sum(const at::Tensor& tensor, Tag tag) override {
    check(tensor, world_);
    auto pending = mesh_->reduce_scatter(tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                                         element_type(tensor), tag);
    return std::make_unique<TensorPending>(std::vector{tensor}, std::move(pending));
  }
  std::unique_ptr<Pending> all_gather(const at::Tensor& tensor, Tag tag) override {
    check(tensor, world_);
    auto pending = mesh_->all_gather(tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                                     tensor.element_size(), tag);
    return std::make_unique<TensorPending>(std::vector{tensor}, std::move(pending));
  }
  std::unique_ptr<Pending> all_to_all(const at::Tensor& out, const at::Tensor& in, RankRange range,
                                      Tag tag) override {
    const int others = range.count - 1;
    if (others < 1) throw std::invalid_argument("an exchange needs at least two ranks");
    check(out, others);
    check(in, others);
    auto pending = mesh_->all_to_all(out.const_data_ptr(), in.mutable_data_ptr(),
                                     out.nbytes() / static_cast<size_t>(others), range, tag);
    return std::make_unique<TensorPending>(std::vector{out, in}, std::move(pending));
  }
  Outcome broadcast(const at::Tensor& tensor, Rank root, Tag tag) override {
    check(tensor);
    return mesh_->broadcast(tensor.data_ptr(), tensor.nbytes(), root, tag)->wait();
  }
  Outcome barrier(Tag tag) override { return mesh_->barrier(tag)->wait(); }
  std::string flight_record() const override { return mesh_->flight_log().json(); }

private:
  Rank rank_;
  int world_;
  std::unique_ptr<Mesh> mesh_;
};

class Done : public Pending {
public:
  Outcome wait() override { return {}; }
};

class SingleRankCollectives : public Collectives {
public:
  Rank rank() const override { return 0; }
  int world() const override { return 1; }
  std::unique_ptr<Pending> all_reduce_sum(const at::Tensor&, Tag) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> reduce_scatter_sum(const at::Tensor&, Tag) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> all_gather(const at::Tensor&, Tag) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> all_to_all(const at::Tensor& out, const at::Tensor& in, RankRange,
                                      Tag) override {
    in.copy_(out);
    return std::make_unique<Done>();
  }
  Outcome broadcast(const at::Tensor&, Rank, Tag) override { return {}; }
  Outcome barrier(Tag) override { return {}; }
};

} // namespace

std::unique_ptr<Collectives> make_single_rank_collectives() {
  return std::make_unique<SingleRankCollectives>();
}

Result<std::unique_ptr<Collectives>> make_cpu_collectives(Rank rank, int world,
                                                          const RendezvousAddress& address,
                                                          Duration collective_limit) {
  // The store only connects the ranks. It is closed before training, so that neither its thread nor
  // the sockets of a dead rank 0 matter later.
  NSA_TRY_ASSIGN(std::shared_ptr<Store> store, Store::open(rank, address));
  MeshOptions options{address.folder, address.limit, collective_limit};
  if (address.tcp) options.tcp = MeshOverTcp{address.tcp->host, store->own_host(), address.secret};
  const auto rendezvous = rendezvous_over(std::move(store));
  NSA_TRY_ASSIGN(std::unique_ptr<Mesh> mesh,
                 Mesh::connect(rank, world, *rendezvous, std::move(options)));
  // Rank 0 serves the store, so it may close the store only when all ranks are connected.
  if (auto met = mesh->barrier({0, Kind::kBarrier, 0})->wait(); !met)
    return fail(ErrorCode::kUnavailable,
                "a rank left while the ranks were connecting: " + met.error().what);
  return std::unique_ptr<Collectives>(
      std::make_unique<CpuCollectives>(rank, world, std::move(mesh)));
}

} // namespace nsa::comm
