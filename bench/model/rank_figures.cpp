#include "bench/model/rank_figures.h"

#include "bench/model/failure.h"

#include <ATen/ops/zeros.h>

namespace nsa::bench {

namespace {

constexpr double RankFigures::* kFigures[] = {
    &RankFigures::step_milliseconds, &RankFigures::communication_share,
    &RankFigures::peak_allocated_gib, &RankFigures::reserved_gib};
constexpr int64_t kCount = std::size(kFigures);

} // namespace

std::vector<RankFigures> gather_figures(const RankFigures& own, comm::Collectives& collectives,
                                        at::Device device, uint64_t number) {
  const int64_t world = collectives.world();
  at::Tensor all = at::zeros({world * kCount}, at::kDouble);
  for (int64_t i = 0; i < kCount; ++i)
    all.data_ptr<double>()[collectives.rank() * kCount + i] = own.*kFigures[i];
  all = all.to(device);
  if (auto done = collectives.all_gather(all, {number, comm::Kind::kAgreement, 1})->wait(); !done)
    die(done.error());
  all = all.cpu();
  std::vector<RankFigures> ranks(static_cast<size_t>(world));
  for (int64_t rank = 0; rank < world; ++rank)
    for (int64_t i = 0; i < kCount; ++i)
      ranks[static_cast<size_t>(rank)].*kFigures[i] = all.data_ptr<double>()[rank * kCount + i];
  return ranks;
}

nlohmann::ordered_json to_json(const std::vector<RankFigures>& ranks) {
  auto list = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    list.push_back({{"rank", rank},
                    {"step_ms", ranks[rank].step_milliseconds},
                    {"communication_share", ranks[rank].communication_share},
                    {"peak_allocated_gib", ranks[rank].peak_allocated_gib},
                    {"reserved_gib", ranks[rank].reserved_gib}});
  return list;
}

} // namespace nsa::bench
