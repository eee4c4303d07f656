#include "worker/model/shared_context.h"

#include <memory>
#include <utility>

namespace nsa::train {

comm::RankRange context_range(Rank rank, int context_ranks) {
  return {rank / context_ranks * context_ranks, context_ranks};
}

model::SharedGroup make_context_group(comm::Collectives& collectives, int context_ranks,
                                      std::function<uint64_t()> step) {
  if (context_ranks == 1) return nullptr;
  const comm::RankRange range = context_range(collectives.rank(), context_ranks);
  auto group = std::make_shared<model::ContextGroup>();
  group->rank = collectives.rank() - range.first;
  group->size = range.count;
  // This rank's position among the exchanges of a step; the same on all ranks.
  struct ExchangeNumber {
    uint64_t step = 0;
    uint32_t index = 0;
  };
  group->all_to_all = [&collectives, range, step = std::move(step),
                       place = std::make_shared<ExchangeNumber>()](
                          const at::Tensor& out, const at::Tensor& in) -> std::function<void()> {
    const uint64_t now = step();
    if (std::exchange(place->step, now) != now) place->index = 0;
    std::shared_ptr<comm::Pending> pending = collectives.all_to_all(
        out.flatten(), in.flatten(), range, {now, comm::Kind::kContext, place->index++});
    return [pending = std::move(pending)] {
      if (auto outcome = pending->wait(); !outcome) throw comm::PeerLost(outcome.error());
    };
  };
  return group;
}

} // namespace nsa::train
