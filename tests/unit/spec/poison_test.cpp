// Harmful run files and nsad.toml: too deep, too large, too many mistakes. Each is an error that
// names its place. The time is linear in the size of the text.
#include "tests/unit/spec/spec_testing.h"

#include "common/spec/node_spec.h"
#include "common/spec/reader.h"
#include "common/spec/toml_reader.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string dotted(size_t parts) {
  std::string key = "a";
  for (size_t i = 1; i < parts; ++i)
    key += ".a";
  return key;
}

std::vector<std::string> problems_of_file(const std::string& text) {
  return formatted(parse_run_file(text, "run.toml").problems);
}

std::vector<std::string> problems_of_node(const std::string& text) {
  return formatted(parse_node_file(text, "nsad.toml").problems);
}

// Without the limit, the process would end in the destructor of the parsed tree.
TEST(PoisonedToml, AKeyOfManyPartsIsRefusedBeforeItIsATree) {
  const std::string key = dotted(40000);
  for (const std::string& line : {key + " = 1", "[" + key + "]", "[[" + key + "]]",
                                  "x = { " + key + " = 1 }", "x = [{ \"b\"." + key + " = 1 }]"}) {
    const auto problems = problems_of_file("schema = 1\n" + line + "\n");
    ASSERT_FALSE(problems.empty());
    EXPECT_THAT(problems.front(), HasSubstr("run.toml:2:"));
    EXPECT_THAT(problems.front(), HasSubstr("a key has more than 16 dots"));
    EXPECT_THAT(problems_of_node("schema = 1\n" + line + "\n").front(), HasSubstr("nsad.toml:2:"));
  }
}

// This holds whatever comes before the key on its line or in the text, quoted or not.
TEST(PoisonedToml, QuotesHideNoKey) {
  const std::string key = dotted(40000) + " = 1";
  for (const std::string before :
       {"x = \"\"\"a\"\"\"\"\n", "x = '''a''''\n", "x = { y = \"\"\"a\"\"\"\", ", "x = 'a\\'\n",
        "x = \"a\\\"\"\n", "# \"\n", "x = \"unclosed\n", "x = '''\n'''\n", "x = \"\"\n"})
    EXPECT_THAT(problems_of_file(before + key + "\n"),
                testing::Contains(HasSubstr("more than 16 dots")))
        << before;
}

TEST(PoisonedToml, DotsInTextsCommentsAndNumbersAreFine) {
  const std::string dots(1000, '.');
  const Parsed parsed = parse_run_file(
      kGoodFile + "# " + dots + "\n[run]\nname = \"n\"\nnote = \"" + std::string(20, '.') +
          "\"\n[checkpoint]\n" + "interval_steps = 5 # " + dots + "\n",
      "run.toml");
  EXPECT_THAT(formatted(parsed.problems), testing::IsEmpty());
}

TEST(PoisonedToml, NestedValuesAreLimited) {
  for (const char* open : {"[", "{a="}) {
    std::string text = "schema = 1\nx = ";
    for (int i = 0; i < 100000; ++i)
      text += open;
    EXPECT_THAT(problems_of_file(text).front(), HasSubstr("nested deeper than 64 levels")) << open;
  }
}

// 64 inline tables of 16 dots each would be a thousand levels. The limit on names refuses them long
// before.
TEST(PoisonedToml, ALongPathIsRefusedOnce) {
  std::string text = "x = ";
  for (int i = 0; i < 60; ++i)
    text += "{" + dotted(16) + " = ";
  text += "1" + std::string(60, '}');
  EXPECT_THAT(problems_of_file(text), testing::Contains(HasSubstr("run.toml:1:")));
  // A table name of half a MiB with fifty thousand keys.
  text = "schema = 1\n[" + std::string(500000, 'k') + "]\n";
  for (int i = 0; i < 50000; ++i)
    text += "k" + std::to_string(i) + "=1\n";
  EXPECT_THAT(problems_of_file(text),
              testing::Contains(HasSubstr("run.toml:2:2: a key, with the names")));
}

TEST(PoisonedToml, SizeIsLimited) {
  const std::string text = "schema = 1\n" + std::string(kMaxTomlBytes, '#');
  EXPECT_THAT(problems_of_file(text),
              testing::Contains(HasSubstr("run.toml:1:1: has 1.0 MiB, more than the 1.0 MiB")));
  EXPECT_THAT(problems_of_node(text), testing::Contains(HasSubstr("nsad.toml:1:1: has ")));
}

double seconds_for(const std::string& text, std::vector<std::string>& problems) {
  const auto began = std::chrono::steady_clock::now();
  problems = problems_of_file(text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// As many keys as a file can hold. Once this took half a minute, and now it takes 0.1 s. The limit
// leaves room for sanitizers and a busy machine.
TEST(PoisonedToml, ManyUnknownKeysAreCountedNotTold) {
  std::string text = "schema = 1\n";
  int keys = 0;
  while (text.size() + 16 < kMaxTomlBytes)
    text += "k" + std::to_string(keys++) + "=1\n";
  std::vector<std::string> problems;
  EXPECT_LT(seconds_for(text, problems), 15.0);
  EXPECT_LT(problems.size(), kMostTold + 10);
  EXPECT_THAT(problems, testing::Contains(HasSubstr("and " + std::to_string(keys - 50) +
                                                    " more keys or tables that nothing reads")));
}

TEST(PoisonedToml, ManyWrongTogglesListsAndSyntaxMistakesToo) {
  std::string toggles = "schema = 1\n[toggles]\n", list = "schema = 1\n[run]\npass_environment = [",
              tags = "schema = 1\n[run]\ntags = [", noise = "schema = 1\n";
  for (int i = 0; i < 80000; ++i) {
    toggles += "k" + std::to_string(i) + "=1\n";
    list += "\"V" + std::to_string(i) + "\",";
    tags += "\"t" + std::to_string(i) + "\",";
    noise += "x x x\n\n";
  }
  std::vector<std::string> problems;
  EXPECT_LT(seconds_for(toggles, problems), 15.0);
  EXPECT_LT(problems.size(), 70u);
  EXPECT_THAT(problems, testing::Contains(HasSubstr("more entries, which were not looked at")));
  EXPECT_LT(seconds_for(list + "]\n", problems), 15.0);
  EXPECT_THAT(problems, testing::Contains(HasSubstr("holds 80000 texts, more than 256")));
  EXPECT_LT(seconds_for(tags + "]\n", problems), 15.0);
  EXPECT_THAT(problems, testing::Contains(HasSubstr("holds 80000 texts, more than 256")));
  EXPECT_LT(seconds_for(noise, problems), 10.0);
  EXPECT_LT(problems.size(), 40u);
}

TEST(PoisonedToml, OverridesAreLimitedInNumberAndCheapInLength) {
  const std::vector<std::string> many(5000, "train.stesp=1");
  EXPECT_THAT(formatted(problems_with(many)),
              testing::Contains(HasSubstr("--set: is given 5000 times, at most 256 are taken")));
  EXPECT_EQ(problems_with({std::string(1 << 20, 'k') + "=1"}).size(), 1u);
}

TEST(PoisonedToml, EveryCutOfAGoodFileIsReadWithoutAFault) {
  for (size_t size = 0; size < kGoodFile.size(); ++size)
    for (const std::string& problem : problems_of_file(kGoodFile.substr(0, size)))
      EXPECT_THAT(problem, HasSubstr("run.toml")) << size;
}

} // namespace
} // namespace nsa::spec
