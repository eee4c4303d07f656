// When a part on another node counts as ended. It never does while its ranks may still compute.
#include "daemon/parts/remote_nodes.h"

#include "common/base/pass_descriptors.h"
#include "common/progress/page.h"

#include <gtest/gtest.h>
#include <optional>
#include <poll.h>
#include <thread>

namespace nsa::parts {
namespace {

class RemoteNodesTest : public testing::Test {
protected:
  static constexpr Duration kOrphans = std::chrono::milliseconds(1500);
  const control::AttemptKey key_{"k3fm2", 1};

  void SetUp() override {
    nodes_ = std::make_unique<RemoteNodes>(
        loop_, RemoteNodes::Options{[this](const std::string&, const wire::Frame& frame) {
                                      sent_.push_back(frame);
                                      return Status();
                                    },
                                    kOrphans,
                                    [](const control::AttemptKey&) { return false; },
                                    [this](const std::string&) { return joined_; },
                                    {},
                                    [this](const RunId& run) { return run == key_.run ? 1 : 0; },
                                    [this](const std::string& node, const std::string& why) {
                                      refused_.push_back(node + ": " + why);
                                    }});
    hears({key_});
    auto watch = nodes_->watch("bee", key_, started_);
    ASSERT_TRUE(watch);
    watch_ = std::move(*watch);
  }
  // The node has connected, and says which parts it holds.
  void hears(const std::vector<control::AttemptKey>& parts) {
    Held held;
    for (const control::AttemptKey& part : parts)
      held.parts.push_back({part.run, part.attempt});
    nodes_->take("bee", frame_of(Message::kHeld, held));
  }
  // Connects to the part's shim. `stream_` is the number of the connection.
  Result<UniqueFd> connect() {
    Result<UniqueFd> socket = fail(ErrorCode::kUnavailable, "");
    std::thread asker([&] { socket = nodes_->connect("bee", key_); });
    std::optional<Call> open;
    while (!open) {
      (void)loop_.run_for(std::chrono::milliseconds(10));
      for (const wire::Frame& frame : sent_)
        if (const auto call = cluster::read_frame<Call>(frame);
            call && call->what == CallKind::kOpen)
          open = *call;
    }
    Answer answer;
    answer.id = open->id;
    stream_ = open->body.at("stream");
    nodes_->take("bee", frame_of(Message::kAnswer, answer));
    asker.join();
    return socket;
  }
  bool has_ended() {
    pollfd end{watch_.get(), POLLIN, 0};
    return ::poll(&end, 1, 0) > 0;
  }
  bool ends_within(Duration limit) {
    const MonotonicTime end = MonotonicTime::now() + limit;
    while (!has_ended() && MonotonicTime::now() < end)
      (void)loop_.run_for(std::chrono::milliseconds(10));
    return has_ended();
  }

  net::EventLoop loop_;
  const WallTime started_ = WallTime::now();
  WallTime joined_{1};
  std::unique_ptr<RemoteNodes> nodes_;
  UniqueFd watch_;
  uint64_t stream_ = 0;
  std::vector<wire::Frame> sent_;
  std::vector<std::string> refused_;
};

TEST_F(RemoteNodesTest, APartThatItsNodeHoldsNoMoreHasEnded) {
  EXPECT_FALSE(has_ended());
  nodes_->on_lost("bee");
  EXPECT_FALSE(has_ended()) << "it may compute";
  hears({key_});
  EXPECT_FALSE(has_ended());
  hears({});
  EXPECT_TRUE(has_ended());
}

TEST_F(RemoteNodesTest, ALostNodesPartHasEndedWhenItMustHave) {
  nodes_->on_lost("bee");
  EXPECT_FALSE(ends_within(std::chrono::milliseconds(500)));
  EXPECT_TRUE(ends_within(std::chrono::seconds(20)));
}

// The job was started again on another machine, while the network of its old node was cut.
TEST_F(RemoteNodesTest, ANodeThatHasJoinedAnewSpeaksNotForTheOneBefore) {
  nodes_->on_lost("bee");
  joined_ = WallTime::now();
  hears({});
  EXPECT_TRUE(nodes_->is_ready("bee"));
  EXPECT_FALSE(has_ended()) << "the old ranks may compute";
  nodes_->take("bee", frame_of(Message::kEnded, Ended{{key_.run, key_.attempt}}));
  EXPECT_FALSE(has_ended()) << "that was another part of the same name";
  EXPECT_TRUE(ends_within(std::chrono::seconds(20)));
}

TEST_F(RemoteNodesTest, ANodeThatHasJoinedAnewAndHoldsThePartIsTheSame) {
  nodes_->on_lost("bee");
  joined_ = WallTime::now();
  hears({key_});
  nodes_->take("bee", frame_of(Message::kEnded, Ended{{key_.run, key_.attempt}}));
  EXPECT_TRUE(has_ended());
}

TEST_F(RemoteNodesTest, AForgedEpochIsRefusedAndItsRanksAreEnded) {
  EXPECT_TRUE(refused_.empty());
  sent_.clear();
  hears({key_, {key_.run, 7}, {"gone", 3}});
  EXPECT_EQ(refused_, std::vector<std::string>{
                          "bee: it claims ranks of attempt 7 of run k3fm2, whose newest is 1"});
  std::vector<AttemptNumber> ended;
  for (const wire::Frame& frame : sent_)
    if (const auto call = cluster::read_frame<Call>(frame); call && call->what == CallKind::kEnd)
      ended.push_back(call->part.attempt);
  EXPECT_EQ(ended, (std::vector<AttemptNumber>{3, 7})) << "and that of a run that is over";
  nodes_->take("cat", frame_of(Message::kEnded, Ended{{key_.run, key_.attempt}}));
  EXPECT_FALSE(has_ended()) << "another node has no say";
}

TEST_F(RemoteNodesTest, ANodeThatRefusesAnOlderEpochStandsInTheAudit) {
  sent_.clear();
  std::optional<Result<nlohmann::json>> answered;
  nodes_->call("bee", CallKind::kPrepare, key_, nullptr,
               [&](const Result<nlohmann::json>& answer) { answered = answer; });
  ASSERT_EQ(sent_.size(), 1u);
  Answer answer;
  answer.id = cluster::read_frame<Call>(sent_.front())->id;
  answer.ok = false;
  answer.code = static_cast<int>(ErrorCode::kConflict);
  answer.what = "it has ranks of attempt 3";
  answer.newer = 3;
  nodes_->take("cat", frame_of(Message::kAnswer, answer));
  EXPECT_FALSE(answered) << "another node has no say";
  nodes_->take("bee", frame_of(Message::kAnswer, answer));
  ASSERT_TRUE(answered);
  ASSERT_FALSE(*answered);
  EXPECT_EQ(answered->error().code, ErrorCode::kConflict);
  EXPECT_EQ(refused_, std::vector<std::string>{"bee: it refuses attempt 1 of run k3fm2, since it "
                                               "has ranks of attempt 3"});
}

// Two machines started at different times, so values of their monotonic clocks cannot be compared.
TEST_F(RemoteNodesTest, TimesOfANodesMonotonicClockAreTimesOfTheHead) {
  // Nanoseconds by which its machine has run longer.
  constexpr int64_t kYears = 100'000'000'000'000'000;
  const auto told = [&](int64_t theirs) {
    return to_seconds(nodes_->here("bee", theirs) - MonotonicTime::now());
  };
  EXPECT_NEAR(told(kYears), 0, 1) << "nothing is known of its clock: now";

  const Result<UniqueFd> socket = connect();
  ASSERT_TRUE(socket) << socket.error().what;

  PageRecord record;
  record.monotonic_ns = MonotonicTime::now().nanoseconds + kYears;
  const std::string bytes(reinterpret_cast<const char*>(&record), sizeof record);
  nodes_->take("bee", stream_frame(Message::kProgress, stream_, bytes));
  const int64_t a_minute_ago = record.monotonic_ns - 60'000'000'000;
  EXPECT_NEAR(told(a_minute_ago), -60, 1);
  nodes_->on_lost("bee");
  hears({key_});
  EXPECT_NEAR(told(a_minute_ago), -60, 1) << "told before the link was cut, heard after it";
}

template <class... Records> std::string bytes_of(const Records&... records) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&records), sizeof records), ...);
  return bytes;
}

// The part's supervisor reads pages of the head. They have the contents of the ranks' pages, and
// only changes are sent.
TEST_F(RemoteNodesTest, NewsOfARankArriveOnAPageOfTheHead) {
  const Result<UniqueFd> socket = connect();
  ASSERT_TRUE(socket) << socket.error().what;
  // Nanoseconds by which the node's monotonic clock is ahead.
  constexpr int64_t kAhead = 50'000'000'000;
  PageRecord record;
  record.rank = 1;
  record.has_host = record.has_device = true;
  record.collectives = 2;
  record.monotonic_ns = MonotonicTime::now().nanoseconds + kAhead;
  progress::HostRecord host;
  host.step = 7;
  host.step_start_ns = record.monotonic_ns - 1'000'000'000;
  progress::DeviceRecord device;
  device.completed_step = 6;
  device.started = 12;
  const progress::Collective first{11, {}, progress::CollectiveKind::kGradient, 3},
      second{12, {}, progress::CollectiveKind::kBarrier, 0};
  nodes_->take("bee", stream_frame(Message::kProgress, stream_,
                                   bytes_of(record, host, device, first, second)));
  EXPECT_FALSE(nodes_->reading(key_, 1)) << "it moves: nothing was read of its process";
  nodes_->take("bee", stream_frame(Message::kBytes, stream_, "hello"));

  char bytes[16];
  ReceivedBytes got = receive_with_descriptors(socket->get(), bytes, 4);
  ASSERT_EQ(got.count, 5);
  ASSERT_EQ(got.descriptors.size(), 1u);
  const auto page = progress::Page::open(std::move(got.descriptors.front()), false);
  ASSERT_TRUE(page) << page.error().what;
  EXPECT_EQ(page->rank(), 1);
  ASSERT_TRUE(page->read_host());
  EXPECT_EQ(page->read_host()->step, 7u);
  EXPECT_NEAR(to_seconds(MonotonicTime::now() - MonotonicTime{page->read_host()->step_start_ns}), 1,
              0.5)
      << "by the head's clock";
  EXPECT_EQ(page->read_device(), device);
  ASSERT_NE(page->read_collectives().find(12), nullptr);
  EXPECT_EQ(*page->read_collectives().find(11), first);

  PageRecord still;
  still.rank = 1;
  still.process.state = 'T';
  device.completed = 12;
  PageRecord moved = still;
  moved.has_device = true;
  nodes_->take("bee", stream_frame(Message::kProgress, stream_, bytes_of(moved, device)));
  EXPECT_EQ(page->read_device().completed, 12u);
  EXPECT_EQ(page->read_host()->step, 7u) << "as it was";
  nodes_->take("bee", stream_frame(Message::kProgress, stream_, bytes_of(still)));
  ASSERT_TRUE(nodes_->reading(key_, 1));
  EXPECT_EQ(nodes_->reading(key_, 1)->state, 'T');
}

TEST_F(RemoteNodesTest, TornNewsAreLeftOut) {
  const Result<UniqueFd> socket = connect();
  ASSERT_TRUE(socket) << socket.error().what;
  PageRecord record;
  record.has_host = record.has_device = true;
  record.collectives = 40'000;
  const std::string whole = bytes_of(record, progress::HostRecord(), progress::DeviceRecord());
  for (size_t size = 0; size <= whole.size(); ++size)
    nodes_->take("bee", stream_frame(Message::kProgress, stream_, whole.substr(0, size)));
  record.rank = -5;
  nodes_->take("bee", stream_frame(Message::kProgress, stream_, bytes_of(record)));
  record.rank = 2'000'000'000;
  nodes_->take("bee", stream_frame(Message::kProgress, stream_, bytes_of(record)));
  EXPECT_FALSE(nodes_->reading(key_, 2'000'000'000));
  EXPECT_FALSE(nodes_->reading(key_, -5));
}

TEST(ClockDifferenceTest, TheFastestMessageSaysMost) {
  const auto at = [](int64_t seconds) { return MonotonicTime{seconds * 1'000'000'000}; };
  const auto read = [&](int64_t seconds) { return at(seconds).nanoseconds; };
  ClockDifference clock;
  EXPECT_FALSE(clock.here(0));
  clock.note(read(100), at(7)); // it was 2 s on the way
  clock.note(read(101), at(6)); // it took no time
  clock.note(read(103), at(9)); // it was 1 s on the way
  EXPECT_NEAR(to_seconds(*clock.here(read(102)) - at(7)), 0, 0.01);
  clock.note(read(100'099), at(100'006)); // its clock has lost 4 s meanwhile
  EXPECT_NEAR(to_seconds(*clock.here(read(100'099)) - at(100'006)), 0, 0.01);
  clock.replace_with_next();
  EXPECT_TRUE(clock.here(0)) << "until the next is there";
  clock.note(read(5), at(100'010)); // its machine was started again
  EXPECT_NEAR(to_seconds(*clock.here(read(6)) - at(100'011)), 0, 0.01);
}

} // namespace
} // namespace nsa::parts
