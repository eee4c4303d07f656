#include "common/progress/page.h"

#include <cstddef>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace nsa::progress {
namespace {

HostRecord record_of(uint64_t n) {
  return {n,
          n + 1,
          Phase::kForward,
          static_cast<uint32_t>(n + 7),
          static_cast<int64_t>(n + 2),
          static_cast<int64_t>(n + 3),
          n + 4,
          n + 5,
          n + 6};
}
Collective collective_of(uint64_t n) {
  return {n, {n + 1, 4, Phase::kAllReduce}, CollectiveKind::kGradient, uint32_t(n)};
}

TEST(Page, ReaderInAnotherMappingSeesTheNewestRecord) {
  Page writer = Page::create(3, 2).value();
  Page reader = Page::open(UniqueFd(::dup(writer.fd())), false).value();
  EXPECT_EQ(reader.rank(), 3);
  EXPECT_EQ(reader.attempt(), 2);
  EXPECT_EQ(reader.read_host(), std::nullopt);
  for (uint64_t n = 1; n < 10; ++n) {
    writer.write_host(record_of(n));
    EXPECT_EQ(reader.read_host(), record_of(n));
  }
  const StepPosition position{8, 5, Phase::kAllReduce};
  writer.write_device(DeviceWord::kCompletedStep, 7);
  writer.write_device(DeviceWord::kPosition, position.word());
  writer.write_device(DeviceWord::kStarted, 31);
  writer.write_device(DeviceWord::kCompleted, 30);
  EXPECT_EQ(reader.read_device(), (DeviceRecord{7, position, 31, 30}));
  EXPECT_TRUE(reader.has_watermarks());
}

PageLayout* map_anew(const Page& page) {
  void* at = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<PageLayout*>(at);
}

// This holds for any number of stored words of the next record.
TEST(Page, WriterThatDiesInTheMiddleLeavesThePreviousRecord) {
  Page page = Page::create(0, 1).value(), whole = Page::create(0, 1).value();
  for (uint64_t n = 1; n <= 2; ++n)
    page.write_host(record_of(n));
  for (uint64_t n = 1; n <= 3; ++n)
    whole.write_host(record_of(n));
  auto& copy = map_anew(page)->copies[1];
  const auto& next = map_anew(whole)->copies[1];
  for (size_t i = 0; i < std::size(copy.words); ++i) {
    copy.words[i] = next.words[i].load();
    EXPECT_EQ(page.read_host(), record_of(2)) << "after word " << i;
  }
  copy.check = next.check.load();
  EXPECT_EQ(page.read_host(), record_of(2)) << "whole, and not yet told of";
  page.write_host(record_of(3));
  EXPECT_EQ(page.read_host(), record_of(3));
}

// A record was published, but its copy was only partly written. It is not read, and neither is a
// mixture.
TEST(Page, AHalfWrittenRecordThatIsToldOfIsNotRead) {
  Page page = Page::create(0, 1).value();
  page.write_host(record_of(1));
  page.write_host(record_of(2));
  PageLayout* layout = map_anew(page);
  ASSERT_NE(layout, nullptr);
  layout->copies[0].words[1] = 77; // of record 2
  EXPECT_EQ(page.read_host(), record_of(1)) << "the one before is whole";
  layout->copies[1].words[1] = 77;
  EXPECT_EQ(page.read_host(), std::nullopt);
}

// A slow reader may find that its copy has been rewritten by a record that is not published yet.
TEST(Page, ARecordAheadOfTheNewestIsNotRead) {
  Page page = Page::create(0, 1).value();
  for (uint64_t n = 1; n <= 4; ++n)
    page.write_host(record_of(n));
  PageLayout* layout = map_anew(page);
  ASSERT_NE(layout, nullptr);
  layout->latest = 2; // the value that the slow reader has seen
  EXPECT_EQ(page.read_host(), std::nullopt);
  layout->latest = 3;
  EXPECT_EQ(page.read_host(), record_of(3));
}

TEST(Page, ConcurrentReaderNeverSeesAMixture) {
  Page page = Page::create(0, 1).value();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t n = 1; !stop; ++n)
      page.write_host(record_of(n));
  });
  uint64_t last = 0, seen = 0;
  while (seen < 200'000) {
    const auto record = page.read_host();
    if (!record) continue;
    ++seen;
    EXPECT_EQ(*record, record_of(record->step));
    EXPECT_GE(record->step, last);
    last = record->step;
  }
  stop = true;
  writer.join();
}

TEST(Page, RefusesWhatIsNotAPageAndCannotBeShrunk) {
  UniqueFd small(::memfd_create("x", 0));
  EXPECT_EQ(Page::open(std::move(small), false).error().code, ErrorCode::kCorrupt);
  UniqueFd blank(::memfd_create("x", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(blank.get(), kPageBytes), 0);
  // A file that may shrink while it is read is not mapped at all.
  EXPECT_THAT(Page::open(UniqueFd(::dup(blank.get())), false).error().what,
              testing::HasSubstr("sealed memory file"));
  ASSERT_EQ(::fcntl(blank.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THAT(Page::open(std::move(blank), false).error().what, testing::HasSubstr("version"));
  Page page = Page::create(0, 1).value();
  EXPECT_NE(::ftruncate(page.fd(), 0), 0);
}

TEST(Page, KeepsTheNewestCollectives) {
  auto made = Page::create(0, 1);
  ASSERT_TRUE(made);
  auto reader = Page::open(UniqueFd(::dup(made->fd())), false);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->read_collectives().find(0), nullptr);
  Writer writer(std::move(*made));
  for (uint64_t step = 1; step <= 40; ++step) {
    writer.begin_step(step, 0);
    writer.enter(Phase::kAllReduce);
    EXPECT_EQ(writer.enqueue(CollectiveKind::kGradient, 7), 2 * step - 1);
    EXPECT_EQ(writer.enqueue(CollectiveKind::kWeights, 8), 2 * step);
    EXPECT_EQ(reader->read_host()->enqueued, 2 * step);
  }
  const CollectiveRing ring = reader->read_collectives();
  EXPECT_EQ(describe(*ring.find(80)), "weights 8 of step 40");
  EXPECT_EQ(ring.find(80 - CollectiveRing::kKept), nullptr);
  for (uint64_t step = 17; step <= 40; ++step) {
    const Collective* gradient = ring.find(2 * step - 1);
    ASSERT_NE(gradient, nullptr);
    EXPECT_EQ(
        *gradient,
        (Collective{2 * step - 1, {step, 1, Phase::kAllReduce}, CollectiveKind::kGradient, 7}));
    ASSERT_NE(ring.find(2 * step), nullptr);
  }
}

TEST(Page, ConcurrentReaderNeverSeesAMixedCollective) {
  Page page = Page::create(0, 1).value();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t n = 1; !stop; ++n)
      page.write_collective(collective_of(n));
  });
  for (int read = 0; read < 20'000; ++read)
    for (const Collective& c : page.read_collectives().slots)
      if (c.number != 0) {
        ASSERT_EQ(c, collective_of(c.number));
      }
  stop = true;
  writer.join();
}

// A rank of an older build writes the same host record, and everything else in another layout.
TEST(Page, AnOlderVersionIsReadWithoutWatermarksAndNeverWritten) {
  Page page = Page::create(0, 1).value();
  page.write_host(record_of(3));
  page.write_collective(collective_of(5));
  PageLayout* layout = map_anew(page);
  ASSERT_NE(layout, nullptr);
  for (const uint32_t version : {3u, 2u, 1u}) {
    layout->version = version;
    if (version < 3) layout->copies[1].check = 1; // for record 1, only its number
    const auto older = Page::open(UniqueFd(::dup(page.fd())), false);
    ASSERT_TRUE(older);
    EXPECT_FALSE(older->has_watermarks());
    EXPECT_EQ(older->read_host(), record_of(3));
    EXPECT_EQ(older->read_device(), (DeviceRecord{2, {}, 0, 0})) << "the step before";
    EXPECT_EQ(older->read_collectives().find(5), nullptr);
    EXPECT_THAT(Page::open(UniqueFd(::dup(page.fd())), true).error().what,
                testing::HasSubstr("version 4"));
  }
  layout->version = kPageVersion + 1;
  EXPECT_THAT(Page::open(UniqueFd(::dup(page.fd())), false).error().what,
              testing::HasSubstr("version 4"));
}

// A process of the same user may write any bytes into the page at any time.
TEST(Page, GarbageIsNeverReadAsARecord) {
  Page page = Page::create(0, 1).value();
  const Page reader = Page::open(UniqueFd(::dup(page.fd())), false).value();
  auto* bytes = static_cast<uint8_t*>(
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.fd(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  const size_t begin = offsetof(PageLayout, latest), end = offsetof(PageLayout, device);
  std::mt19937_64 random(7);
  uint64_t number = 0, read = 0;
  for (int round = 0; round < 20'000; ++round) {
    for (int i = 0; i < 3; ++i) {
      page.write_host(record_of(++number));
      page.write_collective(collective_of(number));
    }
    ASSERT_EQ(reader.read_host(), record_of(number)) << "what was garbage before has been replaced";
    for (size_t left = 1 + random() % 64, at = begin + random() % (end - begin - 64); left > 0;
         --left)
      bytes[at++] = static_cast<uint8_t>(random());
    if (const auto record = reader.read_host()) {
      ASSERT_EQ(*record, record_of(record->step));
      ASSERT_LE(record->step, number);
      ++read;
    }
    for (const Collective& c : reader.read_collectives().slots) {
      if (c.number == 0) continue;
      ASSERT_LE(c.number, number);
      ASSERT_EQ(c, collective_of(c.number));
    }
  }
  EXPECT_GT(read, 10'000u);
  ::munmap(bytes, kPageBytes);
}

// A rank with several pieces of the same work, for example samples to write, keeps its position.
TEST(Writer, EnteringAPhaseAgainIsNoChangeOfPosition) {
  Writer writer(Page::create(0, 1).value());
  writer.begin_step(4, 0);
  writer.enter(Phase::kResults);
  writer.enter(Phase::kEvaluation, 0);
  const HostRecord first = writer.record();
  EXPECT_EQ(first.phase_number, 2u);
  writer.enter(Phase::kEvaluation, 1);
  EXPECT_EQ(writer.record().position(), first.position());
  EXPECT_NE(writer.record(), first) << "but it has moved";
  writer.begin_step(5, 0);
  writer.enter(Phase::kEvaluation);
  EXPECT_EQ(writer.record().phase_number, 1u);
}

TEST(Collective, TheLaterOneOfTwoRanksIsKnown) {
  const Collective bucket{9, {7, 4, Phase::kAllReduce}, CollectiveKind::kGradient, 1};
  Collective other = bucket;
  other.number = 8;
  EXPECT_TRUE(bucket.is_same_as(other));
  other.index = 2;
  EXPECT_FALSE(bucket.is_same_as(other));
  EXPECT_TRUE(bucket.comes_before(other)) << "a bucket later";
  other = {9, {7, 4, Phase::kAllReduce}, CollectiveKind::kAgreement, 0};
  EXPECT_FALSE(bucket.comes_before(other) || other.comes_before(bucket)) << "nobody knows";
  other.at.phase_number = 5;
  EXPECT_TRUE(bucket.comes_before(other));
  other.at = {6, 9, Phase::kResults};
  EXPECT_TRUE(other.comes_before(bucket));
}

TEST(StepPosition, IsOrderedAndFitsAWord) {
  const StepPosition early{3, 9, Phase::kResults}, late{4, 1, Phase::kData};
  EXPECT_LT(early, late);
  EXPECT_LT((StepPosition{4, 1, Phase::kShutDown}), (StepPosition{4, 2, Phase::kStartUp}));
  for (const StepPosition& position : {early, late})
    EXPECT_EQ(StepPosition::of_word(position.word()), position);
  EXPECT_EQ(StepPosition::of_word(StepPosition{1, 1u << 20, Phase::kData}.word()).phase_number,
            StepPosition::kMostPhases);
}

// The compiler's name of a value: "nsa::progress::Phase::kData", or "(nsa::progress::Phase)14" if
// the enum has no such value.
template <Phase P> constexpr bool is_named() {
  constexpr std::string_view kSignature = __PRETTY_FUNCTION__;
  return kSignature.find("Phase)") == std::string_view::npos;
}
template <uint32_t... N> std::set<Phase> named(std::integer_sequence<uint32_t, N...>) {
  std::set<Phase> values;
  ((is_named<Phase(N)>() ? (void)values.insert(Phase(N)) : void()), ...);
  return values;
}

TEST(Phase, EveryValueHasARow) {
  const std::set<Phase> values = named(std::make_integer_sequence<uint32_t, 64>());
  ASSERT_TRUE(values.count(Phase::kAllReduceEvaluation));
  std::set<Phase> rows;
  for (const PhaseInfo& info : kPhases)
    EXPECT_TRUE(rows.insert(info.phase).second) << info.name << " stands twice";
  EXPECT_EQ(values, rows) << "a phase without a row in kPhases is shown as unknown";
}

TEST(Phase, NamesRoundTrip) {
  for (const PhaseInfo& info : kPhases)
    EXPECT_EQ(phase_from_name(phase_name(info.phase)), info.phase);
  EXPECT_EQ(phase_from_name("gather"), Phase::kAllGatherWeights) << "of an older build";
  EXPECT_EQ(phase_from_name("collect"), Phase::kAllGatherState);
  EXPECT_EQ(phase_name(static_cast<Phase>(4711)), "unknown") << "of a newer build";
  EXPECT_EQ(phase_from_name(""), std::nullopt);
  EXPECT_EQ(phase_from_name("backwards"), std::nullopt);
}

} // namespace
} // namespace nsa::progress
