// Rank 0 of two ranks. The test plays its peer by overriding the collectives that it examines.
#pragma once

#include "worker/comm/collectives.h"

#include <stdexcept>

namespace nsa::test {

class FirstOfTwo : public comm::Collectives {
public:
  Rank rank() const override { return 0; }
  int world() const override { return 2; }
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor&, comm::Tag) override {
    throw std::logic_error("nobody plays the peer's part in an all-reduce");
  }
  std::unique_ptr<comm::Pending> reduce_scatter_sum(const at::Tensor&, comm::Tag) override {
    throw std::logic_error("nobody plays the peer's part in a reduce-scatter");
  }
  std::unique_ptr<comm::Pending> all_gather(const at::Tensor&, comm::Tag) override {
    throw std::logic_error("nobody plays the peer's part in an all-gather");
  }
  std::unique_ptr<comm::Pending> all_to_all(const at::Tensor&, const at::Tensor&, comm::RankRange,
                                            comm::Tag) override {
    throw std::logic_error("nobody plays the peer's part in an all-to-all");
  }
  comm::Outcome broadcast(const at::Tensor&, Rank, comm::Tag) override { return {}; }
  comm::Outcome barrier(comm::Tag) override { return {}; }
};

} // namespace nsa::test
