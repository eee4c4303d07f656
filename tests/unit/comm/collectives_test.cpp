// CPU collectives between threads that meet in a folder, and the rendezvous as c10d sees it.
#include "worker/comm/collectives.h"

#include "common/base/local_socket.h"
#include "common/wire/launch_plan.h"
#include "tests/support/first_of_two.h"
#include "tests/support/temporary_folder.h"
#include "worker/comm/c10d_store.h"
#include "worker/comm/watched_collectives.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <sys/socket.h>
#include <thread>

namespace nsa::comm {
namespace {

using namespace std::chrono_literals;

// Records when each call reaches the collectives themselves, between its marks in the page.
class NotingCollectives : public test::FirstOfTwo {
public:
  explicit NotingCollectives(std::vector<std::string>& notes) : notes_(notes) {}
  std::unique_ptr<Pending> all_reduce_sum(const at::Tensor&, Tag) override {
    struct Noting : Pending {
      explicit Noting(std::vector<std::string>& n) : notes(n) {}
      Outcome wait() override {
        notes.push_back("wait");
        return {};
      }
      std::vector<std::string>& notes;
    };
    notes_.push_back("start");
    return std::make_unique<Noting>(notes_);
  }
  Outcome broadcast(const at::Tensor&, Rank, Tag) override {
    notes_.push_back("broadcast");
    return tl::unexpected(PeerFailure{"gone", 1});
  }

private:
  std::vector<std::string>& notes_;
};

TEST(WatchedCollectives, ThePageIsToldBeforeAndAfterEachOne) {
  std::vector<std::string> notes;
  progress::Writer writer(*progress::Page::create(0, 1));
  writer.begin_step(9, 0);
  const auto watched =
      watch(std::make_unique<NotingCollectives>(notes), writer,
            [&](progress::DeviceWord word, uint64_t value) {
              const bool started = word == progress::DeviceWord::kStarted;
              EXPECT_TRUE(started || word == progress::DeviceWord::kCompleted);
              notes.push_back((started ? "started " : "completed ") + std::to_string(value));
            });
  const at::Tensor t = at::full({4}, 1.0, at::kFloat);
  const auto first = watched->all_reduce_sum(t, {9, Kind::kGradient, 0});
  const auto second = watched->all_reduce_sum(t, {9, Kind::kAgreement, 1});
  EXPECT_TRUE(first->wait());
  EXPECT_TRUE(second->wait());
  EXPECT_FALSE(watched->broadcast(t, 0, {9, Kind::kParameters, 0}));
  EXPECT_EQ(notes, (std::vector<std::string>{"start", "start", "started 1", "wait", "completed 1",
                                             "started 2", "wait", "completed 2", "started 3",
                                             "broadcast"}))
      << "one that failed has not ended";
  const progress::CollectiveRing ring = writer.page().read_collectives();
  EXPECT_EQ(*ring.find(1), (progress::Collective{1, {9}, Kind::kGradient, 0}));
  EXPECT_EQ(*ring.find(2), (progress::Collective{2, {9}, Kind::kAgreement, 1}));
  EXPECT_EQ(*ring.find(3), (progress::Collective{3, {9}, Kind::kParameters, 0}));
}

TEST(WatchedCollectives, ASingleRankHasNobodyToWaitFor) {
  auto alone = make_single_rank_collectives();
  const Collectives* same = alone.get();
  progress::Writer writer(*progress::Page::create(0, 1));
  EXPECT_EQ(watch(std::move(alone), writer, {}).get(), same);
}

// Gradients of a step are awaited at the step's end, exchanges within its passes.
TEST(WatchedCollectives, OneThatIsAwaitedBehindALaterOneTurnsNoWatermarkBack) {
  std::vector<std::string> ignored, notes;
  progress::Writer writer(*progress::Page::create(0, 1));
  const auto watched =
      watch(std::make_unique<NotingCollectives>(ignored), writer,
            [&](progress::DeviceWord word, uint64_t value) {
              const bool started = word == progress::DeviceWord::kStarted;
              notes.push_back((started ? "started " : "completed ") + std::to_string(value));
            });
  const at::Tensor t = at::full({4}, 1.0, at::kFloat);
  const auto bucket = watched->all_reduce_sum(t, {9, Kind::kGradient, 0});
  const auto exchange = watched->all_reduce_sum(t, {9, Kind::kContext, 0});
  ASSERT_TRUE(exchange->wait());
  ASSERT_TRUE(bucket->wait());
  EXPECT_EQ(notes, (std::vector<std::string>{"started 2", "completed 2"}));
}

TEST(CpuCollectives, RanksMeetThroughAStoreOnAHandedOverSocket) {
  const test::TemporaryFolder place;
  auto listener = listen_in_folder(place.path(), wire::kStoreSocketName, SOCK_SEQPACKET, 16);
  ASSERT_TRUE(listener) << listener.error().what;
  const int fd = listener->release();
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 3; ++r)
    ranks.emplace_back([&place, r, fd] {
      auto collectives = make_cpu_collectives(r, 3, {place.path(), r == 0 ? fd : -1, 20s}, 20s);
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

// 1 + 2^-8 + 2^-8 is 1.0078125 in BF16 if it is added exactly and rounded once. Rounding after each
// addition (ties to even) would lose both small terms.
TEST(CpuCollectives, SixteenBitSumsAreRoundedOnce) {
  const test::TemporaryFolder place;
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 3; ++r)
    ranks.emplace_back([&place, r] {
      auto collectives = make_cpu_collectives(r, 3, {place.path(), -1, 20s}, 20s);
      ASSERT_TRUE(collectives);
      at::Tensor t = at::full({3}, r == 0 ? 1.0 : 1.0 / 256, at::kBFloat16);
      ASSERT_TRUE((*collectives)->all_reduce_sum(t, {1, Kind::kGradient, 0})->wait());
      EXPECT_EQ(t[0].item<float>(), 1.0078125f);
    });
  for (auto& t : ranks)
    t.join();
}

// Ranks 0 to 2 exchange chunks, and so do 3 to 5. The sum over all ranks comes between two
// exchanges.
TEST(CpuCollectives, NeighboursExchangeChunks) {
  constexpr int kRanks = 6, kRange = 3, kOthers = kRange - 1;
  const test::TemporaryFolder place;
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < kRanks; ++r)
    ranks.emplace_back([&place, r] {
      auto collectives = make_cpu_collectives(r, kRanks, {place.path(), -1, 20s}, 20s);
      ASSERT_TRUE(collectives) << collectives.error().what;
      const Rank first = r / kRange * kRange;
      for (uint32_t round = 0; round < 3; ++round) {
        std::vector<Rank> others;
        for (Rank other = first; other < first + kRange; ++other)
          if (other != r) others.push_back(other);
        // The chunk for rank t has the value 10 r + t in each of its seven bytes.
        const at::Tensor out = at::empty({kOthers, 7}, at::kByte), in = at::zeros_like(out);
        for (int i = 0; i < kOthers; ++i)
          out[i].fill_(10 * r + others[size_t(i)]);
        ASSERT_TRUE((*collectives)
                        ->all_to_all(out.flatten(), in.flatten(), {first, kRange},
                                     {1, Kind::kContext, round})
                        ->wait());
        for (int i = 0; i < kOthers; ++i)
          EXPECT_TRUE(at::equal(in[i], at::full({7}, 10 * others[size_t(i)] + r, at::kByte)));
        at::Tensor sum = at::full({5}, double(r), at::kFloat);
        ASSERT_TRUE((*collectives)->all_reduce_sum(sum, {1, Kind::kGradient, round})->wait());
        EXPECT_EQ(sum[4].item<float>(), 15.0f);
      }
    });
  for (auto& t : ranks)
    t.join();
}

TEST(CpuCollectives, TheFlightRecordIsThatOfTheMesh) {
  const test::TemporaryFolder place;
  std::vector<std::string> records(2);
  std::vector<std::thread> ranks;
  for (Rank r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      auto group = make_cpu_collectives(r, 2, {place.path(), -1, 20s}, 20s);
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
  const test::TemporaryFolder place;
  auto alone = make_cpu_collectives(0, 2, {place.path(), -1, 500ms}, 1s);
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().what.find("rank 1"), std::string::npos);
}

// The calls of NCCL's process group to a store, by the rules of c10d's own stores.
TEST(C10dStore, KeepsTheRulesOfC10dsStores) {
  const test::TemporaryFolder place;
  auto first = Store::open(0, {place.path(), -1, 20s});
  ASSERT_TRUE(first) << first.error().what;
  auto second = Store::open(1, {place.path(), -1, 20s});
  ASSERT_TRUE(second) << second.error().what;
  const auto a = c10d_store_over(*first, 20s), b = c10d_store_over(*second, 20s);
  const std::string binary{'a', '\0', '\xff'};
  a->set("id", std::vector<uint8_t>(binary.begin(), binary.end()));
  EXPECT_EQ(b->get_to_str("id"), binary);
  EXPECT_EQ(a->add("count", 2), 2);
  EXPECT_EQ(b->add("count", 3), 5);
  EXPECT_EQ(a->get_to_str("count"), "5");
  EXPECT_TRUE(a->check({"id", "count"}));
  EXPECT_FALSE(a->check({"id", "missing"}));
  EXPECT_EQ(a->getNumKeys(), 2);
  EXPECT_EQ(a->compareSet("new", "other", "wanted"), "other");
  EXPECT_FALSE(a->check({"new"}));
  EXPECT_EQ(a->compareSet("new", "", "wanted"), "wanted");
  EXPECT_EQ(b->compareSet("new", "other", "again"), "wanted");
  EXPECT_EQ(b->compareSet("new", "wanted", "again"), "again");
  EXPECT_TRUE(a->deleteKey("new"));
  EXPECT_FALSE(b->deleteKey("new"));
  std::thread late([&] { b->set("late", "here"); });
  a->wait({"late", "id"});
  late.join();
  EXPECT_THROW(a->wait({"never"}, std::chrono::milliseconds(50)), c10::DistStoreError);
  // A copy has its own connection: it answers while the first one waits.
  const auto copy = a->clone();
  std::thread waiting([&] { EXPECT_EQ(a->get_to_str("answer"), "42"); });
  copy->set("answer", "42");
  waiting.join();
}

// Rank 0 has left. c10d distinguishes this from a time-out by the type of the error.
TEST(C10dStore, SaysThatNobodyServesItAnyMore) {
  const test::TemporaryFolder place;
  auto first = Store::open(0, {place.path(), -1, 20s});
  auto second = Store::open(1, {place.path(), -1, 20s});
  ASSERT_TRUE(first && second);
  const auto store = c10d_store_over(*second, 60s);
  store->set("key", "value");
  std::thread leaves([&] { first->reset(); });
  EXPECT_THROW(store->get("never"), c10::DistNetworkError);
  leaves.join();
  EXPECT_THROW(store->set("key", "value"), c10::DistNetworkError);
}

} // namespace
} // namespace nsa::comm
