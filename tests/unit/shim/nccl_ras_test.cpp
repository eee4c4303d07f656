// The answer of NCCL's RAS service becomes a part of the evidence. A thread of the test plays the
// service. Its texts have the headings that NCCL's user guide shows.
#include "daemon/shim/evidence/nccl_ras.h"

#include "common/base/file.h"
#include "common/base/tcp.h"
#include "tests/unit/shim/shim_harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace nsa::shim::test {
namespace {

using namespace std::chrono_literals;
using evidence::NcclRasQuestion;
using evidence::summarise_nccl_ras;

constexpr const char* kHealthy = "NCCL version 2.28.9 compiled with CUDA 13.0\n\n"
                                 "Job summary\n===========\n\n  Nodes  Processes\n\n"
                                 "Communicators... (0.00s)\n=============\n\n"
                                 "Errors\n======\n\nWarnings\n========\n\n";
constexpr const char* kLost =
    "Job summary\n===========\n\n  Nodes\n\n"
    "Errors\n======\n\nINCOMPLETE\n  Missing communicator data from 1 job process\n"
    "  Process 4711 on node 10.0.0.2\n\n"
    "Warnings\n========\n\n  rank 1 is behind\n";

// A listener on the loopback interface. It keeps the question, sends `answer` and closes, unless it
// must stay silent.
class FakeRas {
public:
  explicit FakeRas(std::string answer, bool closes = true) {
    auto listener = listen_tcp(0);
    if (!listener) throw std::runtime_error(listener.error().what);
    listener_ = std::move(*listener);
    address_ = "127.0.0.1:" + std::to_string(port_of(listener_.get()).value());
    thread_ = std::thread([this, closes, answer = std::move(answer)] {
      while (true) {
        UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
        if (!peer) return;
        char question[64];
        const ssize_t got = ::recv(peer.get(), question, sizeof question, 0);
        asked_.assign(question, static_cast<size_t>(std::max<ssize_t>(got, 0)));
        (void)::send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        if (!closes) silent_.push_back(std::move(peer));
      }
    });
  }
  ~FakeRas() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& address() const { return address_; }
  const std::string& asked() const { return asked_; } // valid after an answer has been received

private:
  UniqueFd listener_;
  std::string address_, asked_;
  std::vector<UniqueFd> silent_;
  std::thread thread_;
};

TEST(NcclRas, ItsErrorsAndWarningsBecomeAClause) {
  EXPECT_EQ(summarise_nccl_ras(kHealthy), "no errors, no warnings");
  EXPECT_EQ(summarise_nccl_ras(kLost), "INCOMPLETE; Missing communicator data from 1 job process; "
                                       "Process 4711 on node 10.0.0.2; rank 1 is behind");
  EXPECT_EQ(summarise_nccl_ras(""), "");
  EXPECT_EQ(summarise_nccl_ras("hello\nworld\n"), "");
  EXPECT_EQ(summarise_nccl_ras("======"), "");
  const std::string many = "Errors\n======\n" + std::string(100'000, 'x') + "\n";
  EXPECT_EQ(summarise_nccl_ras(many).size(), 600u);
}

TEST(NcclRas, TheWholeAnswerIsRead) {
  const std::string large = kLost + std::string(300'000, 'y');
  FakeRas ras(large);
  auto question = NcclRasQuestion::ask(ras.address());
  ASSERT_TRUE(question) << question.error().what;
  const auto answer = question->answer(MonotonicTime::now() + kWaitLimit);
  ASSERT_TRUE(answer) << answer.error().what;
  EXPECT_EQ(*answer, large);
  EXPECT_EQ(ras.asked(), "VERBOSE STATUS\n");
}

TEST(NcclRas, SilenceEndsAtTheDeadline) {
  FakeRas mute("", /*closes=*/false), half("Errors\n", /*closes=*/false);
  auto nothing = NcclRasQuestion::ask(mute.address()), part = NcclRasQuestion::ask(half.address());
  ASSERT_TRUE(nothing && part);
  EXPECT_FALSE(nothing->answer(MonotonicTime::now() + 50ms));
  const auto came = part->answer(MonotonicTime::now() + 500ms);
  ASSERT_TRUE(came);
  EXPECT_EQ(*came, "Errors\n");
}

TEST(NcclRas, NobodyThereIsSaid) {
  std::string address;
  {
    auto gone = listen_tcp(0);
    address = "127.0.0.1:" + std::to_string(port_of(gone->get()).value());
  }
  const auto refused = NcclRasQuestion::ask(address);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, ::testing::HasSubstr("nobody answers at " + address));
  for (const char* wrong :
       {"", "localhost:1", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:70000"})
    EXPECT_FALSE(NcclRasQuestion::ask(wrong)) << wrong;
}

// The request goes through shim and nsa-evidence, as nsad makes it.
TEST(NcclRas, IsAWitnessInTheEvidence) {
  FakeRas ras(kLost);
  Attempt attempt{2};
  for (auto& rank : attempt.plan.ranks)
    rank.environment["NCCL_RAS_ADDR"] = ras.address();
  // Nobody acknowledges messages here. If ranks were faster, the shim would hold back messages that
  // come after their steps.
  attempt.fake_all({"steps=100000", "step_ms=50"});
  attempt.start();
  Daemon nsad(attempt);
  wire::TakeEvidence request;
  request.id = "hang-1";
  request.interval_seconds = 0.1;
  ASSERT_TRUE(nsad.client().take_evidence(request));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) {
    return d.find<wire::EvidenceTaken>(wire::MessageType::kEvidenceTaken).has_value();
  }));
  const auto taken = *nsad.find<wire::EvidenceTaken>(wire::MessageType::kEvidenceTaken);
  EXPECT_THAT(taken.nccl_ras, ::testing::StartsWith("INCOMPLETE; Missing communicator data"));
  EXPECT_EQ(read_file(std::filesystem::path(taken.folder) / "nccl-ras.txt").value_or(""), kLost);
  EXPECT_EQ(taken.ranks.size(), 2u) << "the rest of the evidence is there too";
}

} // namespace
} // namespace nsa::shim::test
