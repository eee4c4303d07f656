// CPU collectives over a real TCPStore whose socket was bound beforehand and handed over.
#include "worker/comm/collectives.h"

#include "tests/support/bound_socket.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <thread>

namespace nsa::comm {
namespace {

using namespace std::chrono_literals;

using test::bound_socket;

TEST(CpuCollectives, RanksMeetThroughAStoreOnAHandedOverSocket) {
  const auto [fd, port] = bound_socket();
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 3; ++r)
    ranks.emplace_back([r, fd = fd, port = port] {
      auto collectives = make_cpu_collectives(r, 3, {port, r == 0 ? fd : -1, 20s}, 20s);
      ASSERT_TRUE(collectives) << collectives.error().what;
      for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        at::Tensor t = at::full({1000}, double(r + 1), type);
        ASSERT_TRUE((*collectives)->all_reduce_sum(t, {1, Kind::kGradient, 0})->wait());
        EXPECT_EQ(t[999].item<double>(), 6.0);
        at::Tensor halves = at::full({999}, double(r + 1), type);
        ASSERT_TRUE((*collectives)->reduce_scatter_sum(halves, {1, Kind::kGradient, 1})->wait());
        EXPECT_EQ(halves[r * 333 + 332].item<double>(), 6.0);
        ASSERT_TRUE((*collectives)->all_gather(halves, {1, Kind::kWeights, 0})->wait());
        EXPECT_EQ(halves.to(at::kDouble).sum().item<double>(), 5994.0);
      }
      at::Tensor t = at::full({7}, double(r));
      ASSERT_TRUE((*collectives)->broadcast(t, 2, {2, Kind::kParameters, 0}));
      EXPECT_EQ(t[6].item<double>(), 2.0);
      ASSERT_TRUE((*collectives)->barrier({3, Kind::kBarrier, 0}));
    });
  for (auto& t : ranks)
    t.join();
}

// 1 + 2^-8 + 2^-8 is 1.0078125 in BF16 when added exactly and rounded once; rounding after each
// addition (ties to even) would lose both small terms.
TEST(CpuCollectives, SixteenBitSumsAreRoundedOnce) {
  const auto [fd, port] = bound_socket();
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 3; ++r)
    ranks.emplace_back([r, fd = fd, port = port] {
      auto collectives = make_cpu_collectives(r, 3, {port, r == 0 ? fd : -1, 20s}, 20s);
      ASSERT_TRUE(collectives);
      at::Tensor t = at::full({3}, r == 0 ? 1.0 : 1.0 / 256, at::kBFloat16);
      ASSERT_TRUE((*collectives)->all_reduce_sum(t, {1, Kind::kGradient, 0})->wait());
      EXPECT_EQ(t[0].item<float>(), 1.0078125f);
    });
  for (auto& t : ranks)
    t.join();
}

TEST(CpuCollectives, TheFlightRecordIsThatOfTheMesh) {
  const auto [fd, port] = bound_socket();
  std::vector<std::string> records(2);
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 2; ++r)
    ranks.emplace_back([&, r, fd = fd, port = port] {
      auto group = make_cpu_collectives(r, 2, {port, r == 0 ? fd : -1, 20s}, 20s);
      ASSERT_TRUE(group) << group.error().what;
      const at::Tensor t = at::full({3}, 1.0);
      ASSERT_TRUE((*group)->all_reduce_sum(t, {5, Kind::kGradient, 1})->wait());
      records[size_t(r)] = (*group)->flight_record();
    });
  for (auto& t : ranks)
    t.join();
  for (const std::string& record : records)
    EXPECT_NE(record.find("gradient bucket 1 of step 5"), std::string::npos) << record;
  EXPECT_EQ(make_single_rank_collectives()->flight_record(), R"({"version":"2.10","entries":[]})");
}

TEST(CpuCollectives, TheHeartbeatLiesBehindTheTimeOutOfCollectives) {
  EXPECT_GT(heartbeat_limit(600s), Duration(600s));
  EXPECT_GT(heartbeat_limit(10s), Duration(10s));
}

TEST(CpuCollectives, NobodyThereIsAnErrorWithAName) {
  const auto [fd, port] = bound_socket();
  auto alone = make_cpu_collectives(0, 2, {port, fd, 500ms}, 1s);
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().what.find("rank 1"), std::string::npos);
}

} // namespace
} // namespace nsa::comm
