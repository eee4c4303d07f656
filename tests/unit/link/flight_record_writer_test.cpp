#include "worker/link/flight_record_writer.h"

#include "common/base/file.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

// The shim asks. The training thread, here this one, does nothing for the answer.
TEST(FlightRecordWriter, AnswersByItselfAndSurvivesARecordThatCannotBeRead) {
  test::TemporaryFolder folder;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd shim(pair[0]);
  link::Link link{UniqueFd(pair[1])};
  std::atomic<int> asked{0};
  FlightRecordWriter writer(link, 3, [&]() -> std::string {
    if (++asked == 1) throw std::runtime_error("the device is gone");
    return R"({"entries":[]})";
  });
  const auto ask = [&] {
    const std::string frame = *wire::encode(wire::MessageType::kCollectivesRequest,
                                            wire::CollectivesRequest{folder.path().string()});
    ASSERT_EQ(::send(shim.get(), frame.data(), frame.size(), 0), ssize_t(frame.size()));
  };
  const auto wait_for = [](auto condition) {
    for (int i = 0; i < 60'000 && !condition(); ++i)
      ::usleep(1000);
    return condition();
  };
  ask();
  ASSERT_TRUE(wait_for([&] { return asked == 1; }));
  ask();
  const fs::path written = folder.path() / "collectives-3.json";
  ASSERT_TRUE(wait_for([&] { return fs::exists(written); }));
  EXPECT_EQ(*read_file(written), R"({"entries":[]})");
}

} // namespace
} // namespace nsa::train
