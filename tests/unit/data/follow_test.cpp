// A loader that follows a data set while it is fetched (data.follow).
#include "common/dataset/generations.h"
#include "common/dataset/work_folder.h"
#include "tests/unit/dataset/prepare_support.h"
#include "worker/data/follow_order.h"
#include "worker/data/loader.h"

#include <gmock/gmock.h>
#include <set>
#include <thread>

namespace nsa::data {
namespace {

using namespace std::chrono_literals;
using dataset::Split;
using ::testing::HasSubstr;

constexpr int64_t kLength = 16;

TEST(FollowOrder, AnEpochHasEachSampleOnceGenerationAfterGeneration) {
  const std::vector<int64_t> shards = {500, 500, 3, 500, 217};
  FollowOrder order(kLength, 7);
  int64_t tokens = 0, before = 0;
  for (const int64_t shard : shards) {
    order.add(shard);
    tokens += shard;
    const int64_t samples = sample_count(tokens, kLength);
    ASSERT_EQ(order.samples(), samples);
    std::set<int64_t> seen;
    for (int64_t g = before; g < samples; ++g) {
      const SequenceAddress at = order.at(g);
      EXPECT_EQ(at.epoch, 0);
      EXPECT_GE(at.sample, before);
      EXPECT_LE(at.position + kLength + 1, tokens) << "behind the last shard that is there";
      EXPECT_TRUE(seen.insert(at.sample).second);
      EXPECT_EQ(order.read_by(g + 1), order.generations());
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), samples - before);
    EXPECT_FALSE(order.has(samples + 1));
    before = samples;
  }
  order.complete();
  const SampleOrder all(order.samples(), kLength, 7);
  EXPECT_TRUE(order.has(10 * before));
  for (int64_t g = before; g < 3 * before; ++g) {
    EXPECT_EQ(order.at(g).sample, all.at(g).sample);
    EXPECT_EQ(order.read_by(g + 1), shards.size());
  }
}

TEST(FollowOrder, WhatComesLaterMovesNothing) {
  FollowOrder early(kLength, 3), late(kLength, 3);
  early.add(800);
  for (const int64_t shard : {800, 800, 100})
    late.add(shard);
  late.complete();
  for (int64_t g = 0; g < early.samples(); ++g)
    EXPECT_EQ(early.at(g).position, late.at(g).position);
}

// Plays a fetch: a prepared data set arrives shard by shard.
class FollowTest : public ::testing::Test {
protected:
  FollowTest() {
    auto options = dataset::byte_options(folder_, {folder_.write("t.txt", dataset::some_text(60))});
    options.output = folder_.path() / "whole";
    options.shard_tokens = 1000;
    EXPECT_TRUE(dataset::prepare(options));
    whole_ = dataset::read_manifest(options.output).value();
    shards_ = dataset::count_generations(whole_);
    EXPECT_GE(shards_, 4u);
  }

  // The fetch has completed this many shards. With all of them it ends.
  void arrive(size_t shards) {
    std::filesystem::create_directories(work());
    for (const auto& shard : whole_.shards)
      std::filesystem::copy_file(folder_.path() / "whole" / shard.file, work() / shard.file,
                                 std::filesystem::copy_options::skip_existing);
    const auto part = dataset::generations({work(), whole_, true}, std::min(shards, shards_));
    ASSERT_TRUE(dataset::write_generations(work(), *part));
    if (shards < shards_) return;
    ASSERT_TRUE(dataset::write_manifest(work(), whole_));
    std::filesystem::rename(work(), output());
  }

  std::filesystem::path output() const { return folder_.path() / "data"; }
  std::filesystem::path work() const { return dataset::fetching_folder(output()); }

  LoaderOptions options(int64_t rank = 0, int64_t world = 1) const {
    LoaderOptions options;
    options.sources = {
        {dataset::open_arrived(output(), dataset::Check::kSizes).value(), 1, output()}};
    options.shape = {kLength, 2, 4 / world, rank, world}; // eight sequences a step
    options.seed = 5;
    options.look_every = 1ms;
    options.check = dataset::Check::kChecksums;
    return options;
  }

  // The inputs of the next steps, and the state that a checkpoint after them records.
  struct Read {
    std::vector<int64_t> tokens;
    DataState state;
  };
  static Read read(Loader& loader, int64_t steps) {
    Read read;
    for (int64_t step = 0; step < steps; ++step) {
      const Status there = loader.await_step([] {});
      EXPECT_TRUE(there) << there.error().what;
      for (int micro = 0; there && micro < 4; ++micro) {
        const auto batch = loader.next();
        read.tokens.insert(read.tokens.end(), batch->inputs.begin(), batch->inputs.end());
      }
    }
    read.state = loader.state();
    return read;
  }

  int64_t steps_of(size_t shards) const {
    FollowOrder order(kLength, 5);
    for (size_t i = 0; const auto& shard : whole_.shards)
      if (shard.split == Split::kTrain && i++ < shards) order.add(shard.tokens);
    return order.samples() / 8;
  }

  const test::TemporaryFolder folder_;
  dataset::Manifest whole_;
  size_t shards_ = 0;
};

TEST_F(FollowTest, ARunThatWaitsReadsWhatOneReadsThatBeganLater) {
  arrive(1);
  const auto fetch = dataset::WorkFolder::create_or_continue(output());
  ASSERT_TRUE(fetch);
  auto early = Loader::open(options()).value();
  const int64_t steps = 2 * steps_of(shards_); // into the next epoch
  Read waited = read(*early, steps_of(1));
  std::jthread slow([&] {
    for (size_t shards = 2; shards <= shards_; ++shards)
      arrive(shards);
  });
  const Read rest = read(*early, steps - steps_of(1));
  slow.join();
  waited.tokens.insert(waited.tokens.end(), rest.tokens.begin(), rest.tokens.end());
  auto late = Loader::open(options()).value();
  const Read straight = read(*late, steps);
  EXPECT_EQ(waited.tokens, straight.tokens);
  EXPECT_EQ(rest.state, straight.state);
  EXPECT_GE(straight.state.epoch, 1);
  EXPECT_EQ(straight.state.generations, static_cast<int64_t>(shards_));
}

TEST_F(FollowTest, AResumeIsExactWhereverItBegins) {
  arrive(2);
  const int64_t steps = steps_of(2), before = steps / 3;
  const Read straight = read(*Loader::open(options()).value(), steps);
  const Read begun = read(*Loader::open(options()).value(), before);
  EXPECT_EQ(begun.state.generations, 1);
  arrive(3);
  const Read rest = read(*Loader::open(options(), begun.state).value(), steps - before);
  std::vector<int64_t> joined = begun.tokens;
  joined.insert(joined.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(joined, straight.tokens);
  EXPECT_EQ(rest.state, straight.state);
  EXPECT_EQ(rest.state.generations, 2);
}

TEST_F(FollowTest, TheIdentityIsKnownAtTheBeginningAndStays) {
  arrive(1);
  const auto part = dataset::read_source({output(), 1, true});
  arrive(shards_);
  const auto whole = dataset::read_source({output(), 1, true});
  EXPECT_EQ(part->digest, whole->digest);
  EXPECT_NE(whole->digest, whole_.digest);
  EXPECT_EQ(dataset::read_source({output(), 1, false})->digest, whole_.digest);
}

TEST_F(FollowTest, WithoutAFetchTheRunIsToldToContinueIt) {
  arrive(1);
  auto given = options();
  given.starved_limit = 0s;
  auto loader = Loader::open(given).value();
  read(*loader, steps_of(1));
  const Status over = loader->await_step([] {});
  ASSERT_FALSE(over);
  EXPECT_THAT(over.error().what, HasSubstr("nobody fetches it"));
  EXPECT_THAT(over.error().next, HasSubstr("nsactl data fetch"));
}

TEST_F(FollowTest, ALoaderThatWaitsForAFetchCanBeLetGo) {
  arrive(1);
  const auto fetch = dataset::WorkFolder::create_or_continue(output());
  auto given = options();
  given.starved_limit = 0s;
  auto loader = Loader::open(given).value();
  read(*loader, steps_of(1));
  EXPECT_TRUE(dataset::is_fetched_now(output()));
  loader.reset(); // joins the thread that waits
}

TEST_F(FollowTest, OtherShardsAreRefused) {
  arrive(2);
  const Read begun = read(*Loader::open(options()).value(), steps_of(2));
  DataState other = begun.state;
  other.generations_digest = std::string(32, '0');
  const auto refused = Loader::open(options(), other);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, HasSubstr("trained on other shards"));
  DataState further = begun.state;
  further.generations = 3;
  EXPECT_FALSE(Loader::open(options(), further)); // the fetch was started again
  DataState without = begun.state;
  without.generations = 0;
  EXPECT_THAT(Loader::open(options(), without).error().what, HasSubstr("data.follow"));
  auto plain = options();
  plain.sources.front().followed.clear();
  EXPECT_THAT(Loader::open(plain, begun.state).error().what, HasSubstr("data.follow"));
}

TEST_F(FollowTest, AShardThatBecameAnotherIsFound) {
  arrive(1);
  const auto before = dataset::open_arrived(output(), dataset::Check::kSizes);
  // This shard comes later, so the change is allowed.
  whole_.shards.back().checksum = std::string(32, '1');
  for (auto& shard : whole_.shards)
    if (shard.split == Split::kTrain) {
      shard.checksum = std::string(32, '2');
      break;
    }
  arrive(2);
  const auto after = dataset::open_arrived(output(), dataset::Check::kSizes, before->get());
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().code, ErrorCode::kConflict);
}

TEST_F(FollowTest, BeforeTheFirstShardsThereIsNothingToRead) {
  EXPECT_THAT(dataset::read_arrived(output()).error().what, HasSubstr("nor a fetch"));
  std::filesystem::create_directories(work());
  EXPECT_THAT(dataset::read_arrived(output()).error().what, HasSubstr("first shards yet"));
  EXPECT_FALSE(dataset::is_fetched_now(output()));
}

} // namespace
} // namespace nsa::data
