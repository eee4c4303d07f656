#include "common/progress/page.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nsa::progress {
namespace {

HostRecord record_of(uint64_t n) {
  return {n,     n + 1, Phase::kForward, static_cast<int64_t>(n + 2), static_cast<int64_t>(n + 3),
          n + 4, n + 5, n + 6,           static_cast<uint32_t>(n + 7)};
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
  writer.write_device({7, 9});
  EXPECT_EQ(reader.read_device(), (DeviceRecord{7, 9}));
}

TEST(Page, WriterThatDiesInTheMiddleLeavesThePreviousRecord) {
  Page page = Page::create(0, 1).value();
  page.write_host(record_of(1));
  page.write_host(record_of(2));
  const pid_t child = ::fork();
  if (child == 0) {
    page.write_host_torn_for_test(record_of(3));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(page.read_host(), record_of(2));
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
    ASSERT_EQ(*record, record_of(record->step));
    ASSERT_GE(record->step, last);
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
  // What may shrink under the reader's feet is not even looked at.
  EXPECT_THAT(Page::open(UniqueFd(::dup(blank.get())), false).error().what,
              testing::HasSubstr("keeps its size"));
  ASSERT_EQ(::fcntl(blank.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THAT(Page::open(std::move(blank), false).error().what, testing::HasSubstr("version"));
  Page page = Page::create(0, 1).value();
  EXPECT_NE(::ftruncate(page.fd(), 0), 0);
}

TEST(Page, KeepsTheCollectivesOfTheNewestSteps) {
  auto made = Page::create(0, 1);
  ASSERT_TRUE(made);
  auto reader = Page::open(UniqueFd(::dup(made->fd())), false);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->read_step_marks(), StepMarks{}) << "of a build that writes none";
  Writer writer(std::move(*made));
  for (uint64_t step = 1; step <= 20; ++step) {
    writer.begin_step(step, 0);
    writer.enter(Phase::kAllReduce);
    writer.count_collective();
    writer.count_collective();
  }
  const StepMarks marks = reader->read_step_marks();
  for (uint64_t step = 5; step <= 20; ++step)
    EXPECT_EQ(marks[step % kStepMarks], (StepMark{step, static_cast<uint32_t>(2 * (step - 1))}));
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
