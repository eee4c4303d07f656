#include "common/curves/curve_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::curves {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

nlohmann::json record(int step, double loss, int attempt = 1) {
  return {{"kind", "step"},
          {"step", step},
          {"tokens", 512 * step},
          {"loss", loss},
          {"time", "t" + std::to_string(step)},
          {"attempt", attempt},
          {"gates", {{"0/sliding", loss / 10}}}};
}

TEST(CurveIndex, ASegmentKeepsWhatWasLeastAndGreatest) {
  SegmentBuilder builder(1000);
  for (const auto& [step, loss] : {std::pair(5, 3.0), {6, 9.5}, {7, 1.25}, {8, 2.0}})
    EXPECT_TRUE(builder.add(record(step, loss), 100));
  EXPECT_TRUE(builder.add(nlohmann::json{{"kind", "evaluation"}, {"step", 8}, {"loss", 4.0}}, 50));
  builder.add_unreadable(7);
  EXPECT_EQ(builder.end(), 1457);
  SegmentBuilder first;
  EXPECT_TRUE(first.add(record(1, 1), 1000));
  const std::string index = first.lines(1) + builder.lines(77);
  const auto segments = read_index(index, "step", {"gates.0/sliding", "loss", "no such"});
  ASSERT_THAT(segments, SizeIs(2));
  const Segment& segment = segments[1];
  EXPECT_EQ(segment.check, 77u);
  EXPECT_EQ(segment.records, 4);
  EXPECT_EQ(segment.unreadable, 1);
  EXPECT_EQ(segment.least, 5);
  EXPECT_EQ(segment.greatest, 8);
  EXPECT_EQ(segment.index_end, index.size());
  ASSERT_TRUE(segment.metrics[1]);
  EXPECT_EQ(segment.metrics[1]->least.step, 7);
  EXPECT_EQ(segment.metrics[1]->least.value, 1.25);
  EXPECT_EQ(segment.metrics[1]->greatest.time, "t6");
  EXPECT_EQ(segment.metrics[1]->greatest.tokens, 512 * 6);
  ASSERT_TRUE(segment.metrics[0]);
  EXPECT_EQ(segment.metrics[0]->greatest.value, 0.95);
  EXPECT_FALSE(segment.metrics[2]);
  const auto evaluations = read_index(index, "evaluation", {"loss"});
  EXPECT_EQ(evaluations[1].metrics[0]->least.value, 4);
  EXPECT_EQ(evaluations[0].records, 0);
}

// What the fast scanner accepts, the JSON parser reads in the same way.
TEST(CurveIndex, TheQuickWayToReadARecordAndJsonAgree) {
  const std::string plain = record(5, 3.5e-7).dump();
  const std::string cases[] = {plain,
                               R"({"kind":"step","loss":null,"ok":true,"rest":"x y","step":3})",
                               R"({"a":{"b":{"c":-1.5E+3}},"kind":"evaluation","z":0})", R"({})"};
  for (const std::string& text : cases) {
    FlatRecord quick;
    quick.numbers = {{"of the line before", 1.0}};
    EXPECT_TRUE(quick.read(text)) << text;
    const FlatRecord slow = flat_record(*parse_json(text, "a record"));
    EXPECT_EQ(quick.kind, slow.kind);
    EXPECT_EQ(quick.time, slow.time);
    EXPECT_EQ(quick.numbers, slow.numbers) << text;
  }
  for (const std::string text :
       {R"({"kind":"st\u0065p"})", R"({"kind" :"step"})", R"({"a":[1],"kind":"step"})",
        R"({"a":1,"a":2})", R"({"a":01})", R"({"a":1.})", R"({"a":-inf})", R"({"a":1e999})",
        R"({"a":1}x)", R"({"a":1)", R"({"a":})", R"({"b":1,"a":2})", R"({"ä":1})", R"([])",
        R"("kind")", "", R"({"a":1,})", R"({"a":nul})"}) {
    FlatRecord quick;
    EXPECT_FALSE(quick.read(text)) << text;
  }
  for (size_t size = 0; size < plain.size(); ++size)
    EXPECT_FALSE(FlatRecord().read(plain.substr(0, size))) << size;
}

// The fast scanner of a line and the JSON parser return the same.
TEST(CurveIndex, ALineThatIsWrittenInAnotherWayIsReadAsJson) {
  SegmentBuilder builder;
  EXPECT_TRUE(builder.add(record(5, 3.5e-7), 100));
  const std::string lines = builder.lines(1);
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"\"least\":[", "\"least\" : [ "},
        {"\"t5\"", "\"\\u00745\""},
        {",\"greatest\"", ",\"more\":1,\"greatest\""}}) {
    std::string other = lines;
    for (size_t at = 0; (at = other.find(from, at)) != std::string::npos; at += to.size())
      other.replace(at, from.size(), to);
    ASSERT_NE(other, lines);
    for (const std::string& index : {lines, other}) {
      const auto segments = read_index(index, "step", {"loss"});
      ASSERT_THAT(segments, SizeIs(1)) << index;
      ASSERT_TRUE(segments[0].metrics[0]);
      const CurvePoint& least = segments[0].metrics[0]->least;
      EXPECT_EQ(std::tuple(least.attempt, least.step, least.tokens, least.time, least.value),
                std::tuple(1, 5.0, 2560.0, "t5", 3.5e-7));
    }
  }
  for (const char* wrong : {"nan", "inf", "\"\"", "[]", "1e999"}) {
    std::string broken = lines;
    const size_t at = broken.find("\"loss\",\"least\":[1,");
    ASSERT_NE(at, std::string::npos);
    broken.replace(at + std::string("\"loss\",\"least\":[1,").size(), 3, wrong);
    EXPECT_THAT(read_index(broken, "step", {"loss"}), IsEmpty()) << broken;
  }
}

TEST(CurveIndex, AStepThatIsDoneAgainBeginsAnotherSegment) {
  SegmentBuilder builder;
  EXPECT_TRUE(builder.add(record(5, 1), 10));
  EXPECT_FALSE(builder.add(record(5, 2, 2), 10));
  EXPECT_FALSE(builder.add(record(4, 2, 2), 10));
  EXPECT_EQ(builder.end(), 10);
  EXPECT_TRUE(
      // Evaluations are counted separately.
      builder.add(nlohmann::json{{"kind", "evaluation"}, {"step", 4}}, 10));
}

TEST(CurveIndex, ReadingStopsWhereItIsTorn) {
  SegmentBuilder first, second(50), gap(200);
  EXPECT_TRUE(first.add(record(1, 1), 50));
  EXPECT_TRUE(second.add(record(2, 2), 50));
  EXPECT_TRUE(gap.add(record(3, 3), 50));
  const std::string whole = first.lines(1) + second.lines(2);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const auto segments = read_index(whole.substr(0, cut), "step", {"loss"});
    EXPECT_EQ(segments.size(), cut < first.lines(1).size() ? 0u : 1u) << cut;
  }
  EXPECT_THAT(read_index(whole + gap.lines(3), "step", {"loss"}),
              SizeIs(2)); // steps 100 to 200 are missing
  EXPECT_THAT(read_index(second.lines(2), "step", {"loss"}), IsEmpty());
}

TEST(CurveIndex, TextsThatAreNoIndexGiveNothing) {
  for (const char* text :
       {"", "\n", "{}\n", "{\"begin\":0}\n",
        "{\"begin\":0,\"end\":-1,\"check\":0,\"unreadable\":0,\"kinds\":{}}\n",
        "{\"begin\":0,\"end\":5,\"check\":0,\"unreadable\":0,\"kinds\":{\"step\":[]}}\n",
        "{\"begin\":0,\"end\":99999999,\"check\":0,\"unreadable\":0,\"kinds\":{}}\n",
        "{\"kind\":\"step\",\"metric\":\"loss\",\"least\":[]}\n", "{\"begin\":\"x\"}\n"})
    EXPECT_THAT(read_index(text, "step", {"loss"}), IsEmpty()) << text;
}

TEST(CurveIndex, ValuesThatAreNotFiniteAreLeftOut) {
  SegmentBuilder builder;
  EXPECT_TRUE(builder.add(record(1, NAN), 10));
  nlohmann::json none = record(2, 1);
  none["loss"] = nullptr;
  EXPECT_TRUE(builder.add(none, 10));
  const auto segments = read_index(builder.lines(0), "step", {"loss"});
  ASSERT_THAT(segments, SizeIs(1));
  EXPECT_FALSE(segments[0].metrics[0]);
  EXPECT_EQ(segments[0].records, 2);
}

} // namespace
} // namespace nsa::curves
