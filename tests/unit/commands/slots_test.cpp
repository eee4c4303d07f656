// Which slots a run gets: CPU slots, and GPUs that no other program uses.
#include "daemon/commands/slots.h"

#include "tests/support/temporary_folder.h"

#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

class ControlTest : public testing::Test {
protected:
  test::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST(Slots, CpuSlotsAreGivenOutOnceAndComeBack) {
  SlotPool pool(3);
  const auto first = pool.acquire("aaaaa", spec::Device::kCpu, 2);
  ASSERT_TRUE(first);
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2);
  const auto second = pool.acquire("bbbbb", spec::Device::kCpu, 2);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find("1 of 3 are free"), std::string::npos);
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2) << "a refusal takes nothing";
  pool.release("aaaaa");
  EXPECT_TRUE(pool.acquire("bbbbb", spec::Device::kCpu, 3));
}

TEST(Slots, ATakenBackSlotIsTaken) {
  SlotPool pool(2);
  ASSERT_TRUE(pool.take_back("aaaaa", spec::Device::kCpu, {"cpu1"}));
  const auto got = pool.acquire("bbbbb", spec::Device::kCpu, 1);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->front(), "cpu0");
}

TEST_F(ControlTest, AGpuInForeignUseOrLockedElsewhereIsNotGivenOut) {
  const auto locks = [&](const std::string& state) {
    return gpu::HostLocks::open(folder_ / "locks", state, [](const gpu::Holder&) { return true; });
  };
  gpu::Gpus gpus;
  gpus.list = {
      {0, "GPU-a", "X", 1, 0, {4711}}, {1, "GPU-b", "X", 1, 0, {}}, {2, "GPU-c", "X", 1, 0, {}}};
  SlotPool ann(2), bob(2);
  EXPECT_FALSE(ann.acquire("aaaaa", spec::Device::kCuda, 1)) << "no locks, no GPUs";
  ann.use_gpus(std::move(*locks("/ann")));
  bob.use_gpus(std::move(*locks("/bob")));
  ann.set_gpus(gpus);
  bob.set_gpus(gpus);
  const auto first = ann.acquire("aaaaa", spec::Device::kCuda, 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->front(), "GPU-b") << "GPU-a is in foreign use";
  const auto two = bob.acquire("bbbbb", spec::Device::kCuda, 2);
  ASSERT_FALSE(two);
  EXPECT_NE(two.error().what.find("4711"), std::string::npos);
  EXPECT_NE(two.error().what.find("aaaaa"), std::string::npos);
  EXPECT_EQ(bob.acquire("bbbbb", spec::Device::kCuda, 1)->front(), "GPU-c")
      << "the refusal gave its lock back";
  SlotPool careful(2);
  careful.use_gpus(std::move(*locks("/careful")));
  careful.select_gpus({{"all"}, {"GPU-b", "GPU-c"}, std::nullopt});
  careful.set_gpus(gpus);
  EXPECT_EQ(careful.capacity(spec::Device::kCuda), 1);
  const auto none = careful.acquire("ccccc", spec::Device::kCuda, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("GPU 1 is kept out"), std::string::npos) << none.error().what;
}

TEST(GpuSelection, TheNodeFileAndTheEnvironmentNarrowTheChoice) {
  gpu::Gpus gpus;
  gpus.list.resize(3);
  for (int i = 0; i < 3; ++i) {
    gpus.list[static_cast<size_t>(i)].index = i;
    gpus.list[static_cast<size_t>(i)].uuid = "GPU-" + std::string(1, static_cast<char>('a' + i));
  }
  const auto given = [&](const GpuSelection& selection) {
    std::string names;
    for (const gpu::Gpu& g : gpus.list)
      if (selection.why_kept_out(g).empty()) names += g.uuid.back();
    return names;
  };
  EXPECT_EQ(given({}), "abc");
  EXPECT_EQ(given({{"0", "GPU-c"}, {}, {}}), "ac");
  EXPECT_EQ(given({{"0", "GPU-c"}, {"GPU-a"}, {}}), "c");
  EXPECT_EQ(given({{"all"}, {}, "1"}), "b");
  EXPECT_EQ(given({{"all"}, {}, "GPU-c, 0"}), "ac");
  EXPECT_EQ(given({{"all"}, {}, ""}), "") << "as CUDA has it";
  EXPECT_EQ(given({{"all"}, {}, "1,-1,2"}), "b") << "what follows is not visible";
  EXPECT_EQ(given({{"0", "1"}, {}, "1,2"}), "b");
  EXPECT_NE(GpuSelection({{"all"}, {}, "2"}).why_kept_out(gpus.list[0]).find("\"2\""),
            std::string::npos);
  EXPECT_EQ(GpuSelection({{"0", "7", "GPU-z"}, {}, {}}).missing(gpus),
            (std::vector<std::string>{"7", "GPU-z"}));
}

TEST_F(ControlTest, AGpuInQuarantineIsNotGivenOutAndItsHolderKeepsIt) {
  SlotPool pool(2);
  pool.use_gpus(std::move(
      *gpu::HostLocks::open(folder_ / "locks", "/ann", [](const gpu::Holder&) { return true; })));
  gpu::Gpus gpus;
  gpus.list = {{0, "GPU-a", "X", 1, 0, {}}, {1, "GPU-b", "X", 1, 0, {}}};
  pool.set_gpus(gpus);
  ASSERT_TRUE(pool.acquire("aaaaa", spec::Device::kCuda, 1));
  pool.set_quarantine({{"GPU-a", "Xid 79"}, {"GPU-b", "Xid 95"}});
  EXPECT_EQ(pool.quarantined(), 1) << "the other one has its holder";
  EXPECT_EQ(pool.used(spec::Device::kCuda), 1);
  const auto none = pool.acquire("bbbbb", spec::Device::kCuda, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("GPU 1 is in quarantine (Xid 95; nsactl gpu release 1)"),
            std::string::npos)
      << none.error().what;
  const auto views = pool.gpu_views();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].state, wire::GpuStatus::kQuarantine);
  EXPECT_EQ(views[0].run, "aaaaa");
  EXPECT_EQ(views[1].why, "Xid 95");
  pool.release("aaaaa");
  EXPECT_FALSE(pool.acquire("bbbbb", spec::Device::kCuda, 1));
  pool.set_quarantine({{"GPU-a", "Xid 79"}});
  EXPECT_EQ(pool.acquire("bbbbb", spec::Device::kCuda, 1)->front(), "GPU-b");
  EXPECT_EQ(pool.gpu_views()[1].state, wire::GpuStatus::kUsed);
}

} // namespace
} // namespace nsa::control
