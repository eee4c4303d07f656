// Collectives is the interface of training's collectives. The mesh implements it between CPU ranks,
// NCCL between GPUs. Tensors are contiguous and on the runtime's device.
//
// One thread starts operations, in the same order and with the same tags on all ranks. On a CPU,
// Pending::wait() returns when the data has arrived. On a GPU, it orders later work of the current
// stream after the collective; a failure shows in a later call.
#pragma once

#include "worker/mesh/mesh.h"
#include "worker/mesh/rendezvous_address.h"

#include <ATen/core/TensorBody.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace nsa::comm {

class Collectives {
public:
  virtual ~Collectives() = default;
  virtual Rank rank() const = 0;
  virtual int world() const = 0;

  // Works in place on FP32, FP64, BF16 or FP16. On a CPU, 16-bit types are added in FP32 and
  // rounded once. The caller must not touch the tensor until wait().
  virtual std::unique_ptr<Pending> all_reduce_sum(const at::Tensor& tensor, Tag tag) = 0;
  // The two halves of an all-reduce, in place, on flat tensors of `world` equal chunks.
  // reduce_scatter_sum leaves the sum in chunk r of rank r; the other chunks become undefined.
  // all_gather copies chunk r of rank r to all ranks.
  virtual std::unique_ptr<Pending> reduce_scatter_sum(const at::Tensor& tensor, Tag tag) = 0;
  virtual std::unique_ptr<Pending> all_gather(const at::Tensor& tensor, Tag tag) = 0;
  // Exchanges chunks with the other ranks of the range. `out` and `in` are flat tensors of
  // range.count - 1 equal chunks, of any type, one for each other rank in order. A chunk of `out`
  // goes to its rank, and that rank's chunk for this rank becomes the same chunk of `in`. The
  // caller must not touch either until wait(). Each rank is in one range, and all ranks call it at
  // the same point.
  virtual std::unique_ptr<Pending> all_to_all(const at::Tensor& out, const at::Tensor& in,
                                              RankRange range, Tag tag) = 0;
  virtual Outcome broadcast(const at::Tensor& tensor, Rank root, Tag tag) = 0;
  virtual Outcome barrier(Tag tag) = 0;

  // Returns this rank's newest collectives and the state of each, as JSON in the format of c10d's
  // flight recorder. Callable from any thread, also while the training thread hangs.
  virtual std::string flight_record() const { return R"({"version":"2.10","entries":[]})"; }

  // Shuts down in order; no operation may be in flight.
  virtual void shut_down() {}
};

// Thrown if a collective fails in the middle of a forward or backward pass, which cannot return an
// error.
class PeerLost : public std::runtime_error {
public:
  explicit PeerLost(PeerFailure failure)
      : std::runtime_error(failure.what), failure_(std::move(failure)) {}
  const PeerFailure& failure() const { return failure_; }

private:
  PeerFailure failure_;
};

// Limit of c10d's heartbeat monitor, which aborts the process if c10d's watchdog does not run. It
// must come last: after a collective's time-out, which itself comes after nsad's verdict and
// evidence (common/spec/rules.cpp). c10d's default of 480 s is shorter than our default time-out of
// 600 s.
constexpr Duration heartbeat_limit(Duration collective_limit) {
  return collective_limit + std::chrono::seconds(120);
}

// Collectives of a single rank, which exchanges nothing.
std::unique_ptr<Collectives> make_single_rank_collectives();
// Collectives over a mesh, on one host or on several.
Result<std::unique_ptr<Collectives>> make_cpu_collectives(Rank rank, int world,
                                                          const RendezvousAddress& address,
                                                          Duration collective_limit);

} // namespace nsa::comm
