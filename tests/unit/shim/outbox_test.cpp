#include "daemon/shim/outbox.h"

#include "common/base/file.h"
#include "common/wire/packed.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

namespace nsa::shim {
namespace {

namespace fs = std::filesystem;
using wire::MessageType;

class OutboxTest : public ::testing::Test {
protected:
  OutboxTest() {
    std::string name = (fs::temp_directory_path() / "nsa-outbox-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
  }
  ~OutboxTest() override { fs::remove_all(folder_); }
  fs::path spill() const { return folder_ / "outbox.spill"; }

  // Sends everything that may be sent. Each text is "<number>:<body>".
  static std::vector<std::string> send_all(Outbox& outbox) {
    std::vector<std::string> sent;
    while (const std::string* bytes = outbox.next()) {
      wire::FrameDecoder decoder;
      decoder.feed(*bytes);
      const auto message = wire::decode_message(**decoder.next());
      sent.push_back(std::to_string(message->sequence) + ":" + message->body.dump());
      outbox.sent();
    }
    return sent;
  }
  using Texts = std::vector<std::string>;
  fs::path folder_;
};

TEST_F(OutboxTest, NumbersSendsAndForgets) {
  Outbox outbox(spill());
  EXPECT_TRUE(outbox.all_acknowledged());
  EXPECT_EQ(outbox.next(), nullptr);
  outbox.push(MessageType::kRankStarted, "\"a\"");
  outbox.push(MessageType::kRankStarted, "\"b\"");
  EXPECT_EQ(outbox.last_sequence(), 0u) << "a number before it was sent";
  EXPECT_EQ(send_all(outbox), (Texts{"1:\"a\"", "2:\"b\""}));
  EXPECT_FALSE(outbox.all_acknowledged());
  outbox.acknowledge(1);
  EXPECT_EQ(outbox.first_sequence(), 2u);
  outbox.acknowledge(2);
  EXPECT_TRUE(outbox.all_acknowledged());
  EXPECT_EQ(outbox.memory_bytes(), 0u);
}

TEST_F(OutboxTest, SendsAgainWhatWasNotAcknowledged) {
  Outbox outbox(spill());
  for (const char* body : {"1", "2", "3", "4"})
    outbox.push(MessageType::kRankStarted, body);
  send_all(outbox);
  outbox.rewind(2); // nsad came back with message 2 as the newest in its ledger
  EXPECT_EQ(send_all(outbox), (Texts{"3:3", "4:4"}));
  outbox.push(MessageType::kRankStarted, "5");
  outbox.rewind(2);
  EXPECT_EQ(send_all(outbox), (Texts{"3:3", "4:4", "5:5"}));
}

TEST_F(OutboxTest, KeepsTheNewestStepOfEachRankWithoutAGap) {
  Outbox outbox(spill());
  outbox.push_droppable(0, MessageType::kRankMessage, "\"r0 s1\"");
  EXPECT_EQ(send_all(outbox), (Texts{"1:\"r0 s1\""}));
  for (int step = 2; step < 50; ++step)
    for (const Rank rank : {0, 1})
      outbox.push_droppable(rank, MessageType::kRankMessage,
                            "\"r" + std::to_string(rank) + " s" + std::to_string(step) + "\"");
  outbox.push(MessageType::kRankExited, "\"end\"");
  outbox.rewind(0);
  EXPECT_EQ(send_all(outbox), (Texts{"1:\"r0 s1\"", "2:\"r0 s49\"", "3:\"r1 s49\"", "4:\"end\""}));
}

// An nsad of another build may connect at any time. It may also need messages that were already
// sent in the packed form.
TEST_F(OutboxTest, AnNsadThatReadsNoPackedStepsGetsThemInJson) {
  Outbox outbox(spill());
  wire::RankStep step;
  step.rank = 3;
  const auto push = [&](uint64_t number) {
    step.step = number;
    outbox.push_droppable(3, MessageType::kPackedStep, *wire::pack(step));
  };
  const auto in_json = [&](uint64_t number) {
    step.step = number;
    const nlohmann::json body = {{"body", step}, {"rank", 3}, {"type", 3}};
    return std::to_string(number) + ":" + body.dump();
  };
  push(1);
  outbox.rewind(0, true);
  EXPECT_EQ(send_all(outbox), (Texts{"1:null"}));
  push(2);
  outbox.rewind(0, false);
  EXPECT_EQ(send_all(outbox), (Texts{in_json(1), in_json(2)}));
  push(3);
  outbox.rewind(1, true);
  EXPECT_EQ(send_all(outbox), (Texts{in_json(2), "3:null"})) << "JSON is read by all";
  outbox.acknowledge(3);
  EXPECT_EQ(outbox.memory_bytes(), 0u);
}

TEST_F(OutboxTest, SpillsInOrderWhenMemoryIsUsedUp) {
  Outbox outbox(spill(), {.window_bytes = 200, .memory_bytes = 100});
  Texts expected;
  for (int i = 1; i <= 300; ++i) {
    outbox.push(MessageType::kRankMessage, std::to_string(1000 + i));
    expected.push_back(std::to_string(i) + ":" + std::to_string(1000 + i));
  }
  EXPECT_LE(outbox.memory_bytes(), 200u);
  EXPECT_GT(fs::file_size(spill()), 1000u);
  Texts sent;
  uint64_t acknowledged = 0;
  bool pushed = false;
  while (true) {
    const Texts some = send_all(outbox);
    if (some.empty()) break;
    EXPECT_LE(outbox.memory_bytes(), 400u);
    sent.insert(sent.end(), some.begin(), some.end());
    acknowledged += some.size();
    outbox.acknowledge(acknowledged);
    if (!pushed && acknowledged > 100) { // one more message while the file is being read
      outbox.push(MessageType::kRankMessage, "\"late\"");
      expected.push_back("301:\"late\"");
      pushed = true;
    }
  }
  EXPECT_EQ(sent, expected);
  EXPECT_TRUE(outbox.all_acknowledged());
  EXPECT_EQ(fs::file_size(spill()), 0u);
  EXPECT_EQ(outbox.lost(), 0u);
}

TEST_F(OutboxTest, WithoutADiskItKeepsWhatItCanAndEveryEnd) {
  Outbox outbox(folder_ / "missing" / "spill",
                {.window_bytes = 200, .memory_bytes = 100, .last_resort_bytes = 1000});
  for (int i = 0; i < 500; ++i)
    outbox.push(MessageType::kRankMessage, "\"message\"");
  outbox.push(MessageType::kRankExited, "\"end\"");
  EXPECT_GT(outbox.lost(), 300u);
  EXPECT_LT(outbox.memory_bytes(), 1200u);
  Texts all;
  while (true) {
    const Texts some = send_all(outbox);
    if (some.empty()) break;
    all.insert(all.end(), some.begin(), some.end());
    outbox.acknowledge(all.size());
  }
  EXPECT_EQ(all.back(), std::to_string(all.size()) + ":\"end\"");
}

TEST_F(OutboxTest, LeavesNoFileBehind) {
  {
    Outbox outbox(spill(), {.window_bytes = 10, .memory_bytes = 10});
    outbox.push(MessageType::kRankMessage, "\"first one\"");
    outbox.push(MessageType::kRankMessage, "\"second one\"");
    EXPECT_TRUE(fs::exists(spill()));
  }
  EXPECT_FALSE(fs::exists(spill()));
}

} // namespace
} // namespace nsa::shim
