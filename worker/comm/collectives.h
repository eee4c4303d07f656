// Collectives: what training asks of its peers, whatever carries it (the mesh between CPU ranks,
// NCCL between GPUs). Tensors are contiguous and on the runtime's device.
//
// One thread starts operations; on all ranks in the same order with the same tags. On a CPU
// Pending::wait() returns when the data are there; on a GPU when later work of the current stream
// is ordered behind them, and a failure shows in a later call at the latest.
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

  // In place; FP32, FP64, BF16 or FP16. On a CPU 16-bit types are added in FP32 and rounded once.
  // The tensor must stay untouched until wait().
  virtual std::unique_ptr<Pending> all_reduce_sum(const at::Tensor& tensor, Tag tag) = 0;
  // The two halves of an all-reduce, in place, on flat tensors of `world` equal chunks. The first
  // leaves in chunk r of rank r the sum; its other chunks are undefined. The second copies chunk r
  // of rank r to all ranks.
  virtual std::unique_ptr<Pending> reduce_scatter_sum(const at::Tensor& tensor, Tag tag) = 0;
  virtual std::unique_ptr<Pending> all_gather(const at::Tensor& tensor, Tag tag) = 0;
  // Flat tensors of range.count equal chunks: chunk i of `out` goes to rank range.first + i, whose
  // chunk for this rank becomes chunk i of `in`. Any type. Both stay untouched until wait(). Each
  // rank is in one range; all ranks call it at the same place.
  virtual std::unique_ptr<Pending> all_to_all(const at::Tensor& out, const at::Tensor& in,
                                              RankRange range, Tag tag) = 0;
  virtual Outcome broadcast(const at::Tensor& tensor, Rank root, Tag tag) = 0;
  virtual Outcome barrier(Tag tag) = 0;

  // What this rank has asked of its peers and how far each request has come, as JSON in the format
  // of c10d's flight recorder. Any thread, also while the training thread hangs.
  virtual std::string flight_record() const { return R"({"version":"2.10","entries":[]})"; }

  // Orderly end; no operation may be under way.
  virtual void shut_down() {}
};

// A collective in the middle of a forward or backward pass failed, which has no other way to say
// it.
class PeerLost : public std::runtime_error {
public:
  explicit PeerLost(PeerFailure failure)
      : std::runtime_error(failure.what), failure_(std::move(failure)) {}
  const PeerFailure& failure() const { return failure_; }

private:
  PeerFailure failure_;
};

// c10d watches over its own watchdog and ends the process when that stands still for so long. It is
// the very last resort: behind a collective's time-out, which itself lies behind nsad's verdict and
// evidence (common/spec/rules.cpp). c10d's own 480 s would come before our default time-out of 600.
constexpr Duration heartbeat_limit(Duration collective_limit) {
  return collective_limit + std::chrono::seconds(120);
}

// For one rank: nothing to exchange.
std::unique_ptr<Collectives> make_single_rank_collectives();
// Over a mesh between processes of this host.
Result<std::unique_ptr<Collectives>> make_cpu_collectives(Rank rank, int world,
                                                          const RendezvousAddress& address,
                                                          Duration collective_limit);

} // namespace nsa::comm
