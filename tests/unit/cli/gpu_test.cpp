// nsactl gpu: the GPUs of a node in the output for people and for scripts.
#include "commands_fixture.h"

namespace nsa::cli {
namespace {

class GpuCommands : public Commands {
protected:
  void SetUp() override {
    daemon.on_loop([&] {
      daemon.nodes.gpu_views.resize(2);
      for (int i = 0; i < 2; ++i) {
        wire::GpuView& gpu = daemon.nodes.gpu_views[static_cast<size_t>(i)];
        gpu.index = i;
        gpu.uuid = "GPU-" + std::string(1, static_cast<char>('a' + i));
        gpu.name = "NVIDIA H200";
        gpu.memory_bytes = uint64_t{141} << 30;
        gpu.state = wire::GpuStatus::kFree;
      }
      wire::GpuView& broken = daemon.nodes.gpu_views[1];
      broken.state = wire::GpuStatus::kQuarantine;
      broken.why = "Xid 79";
      broken.quarantined_by_run = "k3fm2";
      return 0;
    });
  }
};

TEST_F(GpuCommands, LsShowsWhatIsPutAwayAndWhy) {
  const Outcome listed = run({"gpu", "ls", "-o", "wide"});
  EXPECT_EQ(listed.exit, 0) << listed.err;
  EXPECT_NE(listed.out.find("quarantine"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("Xid 79 (run k3fm2)"), std::string::npos) << listed.out;
  EXPECT_NE(listed.err.find("nsactl gpu release 1"), std::string::npos) << listed.err;
  EXPECT_EQ(json::parse(run({"gpu", "ls", "-o", "json"}).out).at("items").size(), 2u);
}

TEST_F(GpuCommands, ReleaseTakesAnIndexOrAUuid) {
  EXPECT_EQ(run({"gpu", "release"}).exit, 2);
  EXPECT_EQ(run({"gpu", "release", "7"}).exit, 3);
  EXPECT_EQ(run({"gpu", "release", "0"}).exit, 5) << "it is not in quarantine";
  EXPECT_EQ(run({"gpu", "release", "GPU-b"}).exit, 0);
  EXPECT_EQ(run({"gpu", "ls"}).out.find("quarantine"), std::string::npos);
}

} // namespace
} // namespace nsa::cli
