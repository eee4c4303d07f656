#include "common/base/file.h"
#include "common/wire/exit_code.h"
#include "common/wire/frame.h"
#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "common/wire/packed.h"
#include "tests/support/test_paths.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace nsa::wire {

// A message of a future program, with another meaning of its members.
struct Renewed {
  Rank rank = 0;
  std::optional<Rank> peer;

  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankInjected, .version = 2, .name = "renewed", .text = "{rank}"};
  static constexpr auto kMembers =
      members(member("rank", &Renewed::rank), member("peer", &Renewed::peer));
};
struct Misnamed {
  Rank rank = 0;
  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankInjected, .name = "misnamed", .text = "rank {rnak}"};
  static constexpr auto kMembers = members(member("rank", &Misnamed::rank));
};
struct Widened { // another type with the same name
  int64_t rank = 0;
  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankInjected, .name = "widened"};
  static constexpr auto kMembers = members(member("rank", &Widened::rank));
};
struct Reread { // another meaning of the same members
  int64_t rank = 0;
  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankInjected, .version = 2, .name = "reread"};
  static constexpr auto kMembers = members(member("rank", &Reread::rank));
};

namespace {

// The list of words is separate from the values. A missing word would shift all words after it.
template <class E> void expect_list(E last, std::string_view word) {
  EXPECT_EQ(kChoiceNames<E>.size(), static_cast<size_t>(last) + 1) << word;
  EXPECT_EQ(nsa::name_of(last), word);
  EXPECT_EQ(std::set(kChoiceNames<E>.begin(), kChoiceNames<E>.end()).size(),
            kChoiceNames<E>.size());
}

TEST(Words, EachValueHasItsOwn) {
  expect_list(RunState::kDamaged, "damaged");
  expect_list(RankStatus::kKilled, "killed");
  expect_list(CheckpointState::kDeleted, "deleted");
  expect_list(LineType::kCutOff, "cut-off");
  expect_list(LogStream::kPosition, "position");
  expect_list(Severity::kError, "error");
  expect_list(EventKind::kJobChanged, "job_changed");
  expect_list(FinishReason::kStopped, "stopped");
  expect_list(NonFiniteAction::kReport, "report");
  expect_list(RequestResult::kRefused, "refused");
  expect_list(RecordKind::kNonFinite, "non_finite");
  expect_list(FailureClass::kGate, "gate");
  expect_list(GateState::kFailed, "failed");
  expect_list(ToggleOrigin::kFallback, "fallback");
  // Ledgers and users' scripts contain these words.
  EXPECT_EQ(nsa::name_of(EventKind::kRankExited), "rank_exited");
  EXPECT_EQ(nsa::name_of(EventKind::kAttemptFailed), "attempt_failed");
  EXPECT_EQ(nsa::name_of(EventKind::kCheckpointCorrupt), "checkpoint_corrupt");
  EXPECT_EQ(nsa::name_of(FailureClass::kNonFinite), "non-finite");
  EXPECT_EQ(RankError::kMessage.event, "rank_error");
}

TEST(Frame, SurvivesEveryCutOfTheStream) {
  const Frame first{3, 1, "hello"}, second{200, 0, std::string(70'000, 'x')};
  const std::string bytes = encode_frame(first).value() + encode_frame(second).value();
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    FrameDecoder decoder;
    std::vector<Frame> got;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      decoder.feed(std::string_view(bytes).substr(at, piece));
      while (auto frame = decoder.next().value())
        got.push_back(*frame);
    }
    ASSERT_EQ(got.size(), 2u);
    EXPECT_EQ(got[0], first);
    EXPECT_EQ(got[1], second);
    EXPECT_EQ(decoder.buffered(), 0u);
  }
}

TEST(Frame, EveryFlippedBitIsFoundOrHarmless) {
  const Frame frame{9, 5, "{\"a\":1}"};
  const std::string bytes = encode_frame(frame).value();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string broken = bytes;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    FrameDecoder decoder;
    decoder.feed(broken);
    const auto got = decoder.next();
    // With a longer length the decoder waits for bytes that never come. It never returns a wrong
    // message.
    EXPECT_TRUE(!got.has_value() || !got->has_value()) << "bit " << bit;
  }
}

TEST(Frame, StaysBrokenAndRefusesHugeBodies) {
  FrameDecoder decoder;
  decoder.feed("this is not a frame stream");
  EXPECT_EQ(decoder.next().error().code, ErrorCode::kCorrupt);
  decoder.feed(encode_frame({1, 0, ""}).value());
  EXPECT_FALSE(decoder.next());
  EXPECT_FALSE(encode_frame({1, 0, std::string(kMaxBodyBytes + 1, 'x')}));
}

TEST(Frame, RandomBytesNeverCrashAndNeverDeliver) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes)
      c = static_cast<char>(random());
    if (round % 2 == 0) bytes.insert(0, "nsaf\x01");
    FrameDecoder decoder;
    decoder.feed(bytes);
    const auto got = decoder.next();
    EXPECT_TRUE(!got || !*got);
  }
}

TEST(Messages, RoundTripWithSequenceAndInvalidUtf8) {
  RankError error{2, 3, "bad byte \xff in data", "fix it", 1};
  const std::string bytes = encode(MessageType::kRankError, error, 42).value();
  FrameDecoder decoder;
  decoder.feed(bytes);
  const Message message = decode_message(decoder.next().value().value()).value();
  EXPECT_EQ(message.type, MessageType::kRankError);
  EXPECT_EQ(message.sequence, 42u);
  const RankError got = body_as<RankError>(message.body).value();
  EXPECT_EQ(got.rank, 2);
  EXPECT_EQ(got.blamed_peer, 1);
  EXPECT_EQ(got.next, "fix it");
}

TEST(Messages, WrongShapesAreErrorsNotExceptions) {
  EXPECT_FALSE(decode_message({1, 0, "[]"}));
  EXPECT_FALSE(decode_message({1, 0, "{"}));
  EXPECT_FALSE(decode_message({1, 0, "{\"body\":{},\"seq\":\"x\"}"}));
  EXPECT_EQ(decode_message({1, 0, "{\"body\":{},\"seq\":-1}"}).error().what,
            "message of type 1 has a sequence that is no number from 0 on");
  EXPECT_FALSE(body_as<RankStep>(nlohmann::json{{"step", "seven"}}));
  EXPECT_EQ(body_as<RankStep>(nlohmann::json{{"step", 7}, {"from_the_future", 1}})->step, 7u);
}

// Harmful bodies. The parser refuses them before it builds a tree.
TEST(Messages, PoisonIsRefusedWithItsPlace) {
  const auto mistake = [](const std::string& body) {
    const auto message = decode_message({3, 0, body});
    return message ? "" : message.error().what;
  };
  EXPECT_EQ(mistake("{\"body\":" + std::string(60000, '[')),
            "message of type 3, line 1, column 72: nested deeper than 64 levels");
  EXPECT_NE(mistake("{\"body\":{},\"seq\":1e999}").find("message of type 3, line 1"),
            std::string::npos);
  EXPECT_NE(mistake(std::string(kMaxBodyBytes + 1, ' ')).find("more than the 1.0 MiB"),
            std::string::npos);
  for (const char* text : {"", "[]", "{\"pid\":\"x\"}", "{\"ranks\":[[]]}", "{\"rank\":[1]}"}) {
    const auto exited = parse_body<RankExited>(text, "exit-0.json");
    const auto plan = parse_body<LaunchPlan>(text, "launch.json");
    EXPECT_TRUE(!exited || !plan) << text;
    EXPECT_TRUE(exited || exited.error().what.find("exit-0.json") != std::string::npos) << text;
    EXPECT_TRUE(plan || plan.error().what.find("launch.json") != std::string::npos) << text;
  }
  EXPECT_EQ(parse_body<LaunchPlan>(std::string(200000, '['), "launch.json").error().what,
            "launch.json, line 1, column 65: nested deeper than 64 levels");
}

// Truncated to eight bits the number would be 3, the type of a step.
TEST(Messages, ANumberThatNoMessageHasIsRefused) {
  const auto passed_on = [](int type) {
    return body_as<RankMessage>(nlohmann::json{{"rank", 0}, {"type", type}, {"body", {}}});
  };
  ASSERT_TRUE(passed_on(3));
  EXPECT_EQ(passed_on(3)->type, static_cast<uint8_t>(MessageType::kRankStep));
  for (const int type : {259, 256, -253, 65539}) {
    const auto read = passed_on(type);
    ASSERT_FALSE(read) << type;
    EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(read.error().what.find(std::to_string(type)), std::string::npos) << read.error().what;
  }
  // A number that fits but is unknown comes from a newer rank.
  ASSERT_TRUE(passed_on(255));
  EXPECT_EQ(rank_message(static_cast<MessageType>(255)), nullptr);
}

static_assert(names_its_members<Renewed>() && !names_its_members<Misnamed>());

TEST(Descriptors, AMessageOfANewerVersionIsRefused) {
  const nlohmann::json said = Renewed{1, {}};
  EXPECT_EQ(said, nlohmann::json({{"version", 2}, {"rank", 1}}));
  EXPECT_EQ(body_as<Renewed>(said)->rank, 1);
  EXPECT_EQ(body_as<Renewed>(nlohmann::json{{"rank", 1}, {"peer", 3}})->peer, 3) << "version 1";
  const auto old = body_as<RankInjected>(said);
  ASSERT_FALSE(old);
  EXPECT_NE(old.error().what.find("version 2, and this program reads up to 1"), std::string::npos)
      << old.error().what;
}

TEST(Descriptors, SentencesAreMadeOfMembersOnce) {
  EXPECT_EQ(sentence_of(RankInjected{2, 7, "spin {step}"}),
            "fault injected on purpose: spin {step} on rank 2 at step 7");
  EXPECT_EQ(sentence_of(RankEvaluation{0, 40, 0, 3.25, 1}), "held-out loss 3.2500 at step 40");
}

TEST(Descriptors, EveryMessageHasANumberAndANameOfItsOwn) {
  std::set<MessageType> numbers;
  std::set<std::string_view> names;
  RankMessages::for_each([&]<class T>(std::type_identity<T>) {
    EXPECT_TRUE(numbers.insert(T::kMessage.type).second) << T::kMessage.name;
    EXPECT_TRUE(names.insert(T::kMessage.name).second) << T::kMessage.name;
    EXPECT_EQ(rank_message(T::kMessage.type)->name, T::kMessage.name);
    EXPECT_EQ(T::kMessage.event.empty(), T::kMessage.delivery == Delivery::kMayDrop)
        << T::kMessage.name << ": what may be lost is no event";
    const nlohmann::json empty = T{};
    EXPECT_EQ(nlohmann::json(empty.get<T>()), empty);
  });
}

// NSA_UPDATE_DOCS=1 writes the page.
TEST(Descriptors, TheDocumentedTableIsThisTable) {
  const std::string path = test::source_folder() + "/docs/design/rank-messages.md";
  const std::string begin = "<!-- generated: messages -->\n", end = "<!-- end -->\n";
  auto page = read_file(path);
  ASSERT_TRUE(page) << page.error().what;
  const size_t from = page->find(begin), to = page->find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  const size_t start = from + begin.size();
  if (std::getenv("NSA_UPDATE_DOCS")) {
    page->replace(start, to - start, rank_messages_markdown());
    ASSERT_TRUE(write_file_atomic(path, *page));
  } else {
    EXPECT_EQ(page->substr(start, to - start), rank_messages_markdown())
        << "run NSA_UPDATE_DOCS=1 wire_test";
  }
}

RankStep random_step(std::mt19937_64& random) {
  RankStep step;
  for_each_member<RankStep>([&](const auto& m) {
    auto& value = step.*m.at;
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, PackedFigures>) {
      for (uint64_t i = random() % 40; i > 0; --i)
        value[std::to_string(random() % 1000) + "/selected"] = static_cast<double>(random());
    } else {
      value = static_cast<Value>(std::is_same_v<Value, Rank> ? random() % 512 : random());
    }
  });
  return step;
}

TEST(Packed, AStepIsTheSameAfterwards) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 500; ++round) {
    const RankStep step = random_step(random);
    const auto bytes = pack(step);
    ASSERT_TRUE(bytes);
    const auto back = unpack<RankStep>(*bytes);
    ASSERT_TRUE(back);
    EXPECT_EQ(nlohmann::json(*back), nlohmann::json(step));
    // The JSON form of older programs means the same step.
    EXPECT_EQ(pack(*body_as<RankStep>(nlohmann::json(step))), bytes);
    FrameDecoder decoder;
    decoder.feed(*encode_packed_step(*bytes, 7 + static_cast<uint64_t>(round)));
    const auto message = decode_message(**decoder.next());
    ASSERT_TRUE(message);
    EXPECT_EQ(message->type, MessageType::kPackedStep);
    EXPECT_EQ(message->sequence, 7 + static_cast<uint64_t>(round));
    EXPECT_EQ(message->packed, *bytes);
  }
}

TEST(Packed, BytesOfNoStepAreRefused) {
  std::mt19937_64 random(18);
  const std::string bytes = *pack(random_step(random));
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(unpack<RankStep>(bytes.substr(0, size))) << size;
  EXPECT_FALSE(unpack<RankStep>(bytes + "x"));
  // Each step has only one packed form, so every changed byte is noticed.
  for (int round = 0; round < 20'000; ++round) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    const auto step = unpack<RankStep>(changed);
    EXPECT_TRUE(!step || pack(*step) == changed);
  }
  EXPECT_FALSE(decode_message({static_cast<uint8_t>(MessageType::kPackedStep), 0, "1234567"}));
}

TEST(Packed, WhatMetricsCannotHoldIsNotPacked) {
  RankStep step;
  step.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(pack(step));
  step.loss = 1;
  step.gates["line\nbreak"] = 1;
  EXPECT_FALSE(pack(step));
  step.gates = {{std::string(256, 'x'), 1}};
  EXPECT_FALSE(pack(step));
  step.gates = {{std::string(255, 'x'), 1}};
  EXPECT_TRUE(pack(step));
}

static_assert(layout_of<Misnamed>() != layout_of<Widened>() &&
              layout_of<Widened>() != layout_of<Reread>());

TEST(LaunchPlan, RoundTrips) {
  LaunchPlan plan;
  plan.run_id = "abcde";
  plan.ranks.push_back({1, {"/bin/x", "--rank", "1"}, {{"RANK", "1"}}, "/tmp", "/tmp/l"});
  const auto back = nlohmann::json(plan).get<LaunchPlan>();
  EXPECT_EQ(back.ranks.at(0).environment.at("RANK"), "1");
  EXPECT_EQ(back.run_id, "abcde");
}

} // namespace
} // namespace nsa::wire
