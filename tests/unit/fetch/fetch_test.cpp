// The pure functions of nsa-fetch, and how it resumes its shards. tests/e2e/data_fetch runs the
// program with a web server that misbehaves.
#include "cli/data_common.h"
#include "common/dataset/tokenise.h"
#include "fetch/byte_source.h"
#include "fetch/fetch.h"
#include "fetch/source_list.h"
#include "fetch/split_writer.h"
#include "fetch/synthetic.h"
#include "fetch/url.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

namespace nsa::fetch {
namespace {

using dataset::Token;
using test::TemporaryFolder;
using ::testing::HasSubstr;

TEST(Url, WhatIsShownHoldsNoSecret) {
  EXPECT_EQ(printable_url("https://ann:secret@host:8443/a/b.jsonl?X-Amz-Signature=secret#secret"),
            "https://host:8443/a/b.jsonl");
  EXPECT_EQ(printable_url("http://[bad?secret"), "http://[bad");
}

TEST(Url, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Hub.example/x"), origin_of("https://hub.example:443/y?z"));
  EXPECT_NE(origin_of("https://hub.example/"), origin_of("http://hub.example/"));
  EXPECT_NE(origin_of("https://hub.example/"), origin_of("https://hub.example:444/"));
  EXPECT_NE(origin_of("https://hub.example/"), origin_of("https://hub.example.evil/"));
  EXPECT_NE(origin_of("https://hub.example/"), origin_of("https://hub.example@evil/"));
}

TEST(Url, ARedirectNeverLeadsOutOfEncryption) {
  EXPECT_EQ(redirected("https://a/b/c", "../d?e").value_or("none"), "https://a/d?e");
  EXPECT_EQ(redirected("http://a/b", "https://c/").value_or("none"), "https://c/");
  EXPECT_EQ(redirected("https://a/b", "http://c/d").error().code, ErrorCode::kPermission);
  EXPECT_FALSE(redirected("https://a/b", "file:///etc/passwd"));
  EXPECT_FALSE(redirected("https://a/b", "ftp://c/d"));
}

TEST(Url, OnlyHttpsAndThisMachineArePrivate) {
  EXPECT_TRUE(is_private("https://host/"));
  EXPECT_TRUE(is_private("http://127.0.0.1:1/"));
  EXPECT_TRUE(is_private("http://localhost/"));
  EXPECT_FALSE(is_private("http://host/"));
  EXPECT_FALSE(is_private("http://localhost.evil/"));
}

TEST(Glob, AStarStaysInItsFolder) {
  EXPECT_TRUE(matches_glob("sample/10BT/*.parquet", "sample/10BT/000_00000.parquet"));
  EXPECT_FALSE(matches_glob("sample/*.parquet", "sample/10BT/000_00000.parquet"));
  EXPECT_TRUE(matches_glob("**/*.parquet", "sample/10BT/0.parquet"));
  EXPECT_TRUE(matches_glob("**/*.parquet", "0.parquet"));
  EXPECT_TRUE(matches_glob("data/0[0-3]?.parquet", "data/02x.parquet"));
  EXPECT_FALSE(matches_glob("data/0[0-3]?.parquet", "data/04x.parquet"));
  EXPECT_FALSE(matches_glob("data/[!0]*.parquet", "data/0.parquet"));
  EXPECT_FALSE(matches_glob("a", "ab"));
  EXPECT_TRUE(matches_glob("", ""));
}

TEST(Source, AShortNameIsAPlaceOnTheHub) {
  EXPECT_EQ(source_of_name("fineweb-edu", "10BT").value_or("none"),
            "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet");
  EXPECT_THAT(source_of_name("fineweb-edu", "").error().next, HasSubstr("--sample 10BT"));
  EXPECT_FALSE(source_of_name("rows.jsonl", "10BT"));
}

TEST(Source, ARevisionOfTheHubMayHoldSlashes) {
  const auto told = [](const std::string& source) {
    const auto hub = hub_source(source);
    return hub ? hub->name + " " + hub->revision + " " + hub->path : hub.error().what;
  };
  const std::string set = "hf://datasets/ann/rows";
  EXPECT_EQ(told(set + "/a/*.txt"), "ann/rows main a/*.txt");
  EXPECT_EQ(told(set + "/a@b/*.txt"), "ann/rows main a@b/*.txt");
  EXPECT_EQ(told(set + "@v1/a/*.txt"), "ann/rows v1 a/*.txt");
  EXPECT_EQ(told(set + "@refs/convert/parquet/default/*.txt"),
            "ann/rows refs/convert/parquet default/*.txt");
  EXPECT_EQ(told(set + "@refs/pr/3/a.txt"), "ann/rows refs/pr/3 a.txt");
  EXPECT_EQ(told(set + "@refs%2Fpr%2F3/a.txt"), "ann/rows refs/pr/3 a.txt");
  EXPECT_EQ(told(set + "@feature%2Fone/a.txt"), "ann/rows feature/one a.txt");
  EXPECT_THAT(told(set + "@refs/pr/3"), HasSubstr("no owner, name and path"));
  EXPECT_THAT(told(set + "@/a.txt"), HasSubstr("empty revision"));
  EXPECT_THAT(told(set + "/"), HasSubstr("no owner, name and path"));
}

TEST(Fetch, AnOptionWithoutEffectIsRefused) {
  const TemporaryFolder folder;
  folder.write("a.txt", "one\n\ntwo\n");
  folder.write("a.jsonl", "{\"text\": \"three\"}\n");
  const auto refusal = [&](const std::vector<std::string>& names, dataset::DocumentUnit unit,
                           const std::string& column) {
    FetchOptions options;
    for (const std::string& name : names)
      options.sources.push_back((folder.path() / name).string());
    options.prepare.tokenizer = dataset::TokenizerKind::kBytes;
    options.prepare.heldout_fraction = 0;
    options.prepare.documents = unit;
    options.prepare.jsonl_key = column;
    options.prepare.if_exists = dataset::IfExists::kReplace;
    options.prepare.output = folder.path() / "data";
    options.restart = true;
    const auto made = fetch(options, {}, {});
    return made ? "made" : made.error().what;
  };
  using dataset::DocumentUnit;
  EXPECT_THAT(refusal({"a.txt"}, DocumentUnit::kFile, "body"), HasSubstr("--column has no effect"));
  EXPECT_THAT(refusal({"a.jsonl"}, DocumentUnit::kParagraph, "text"),
              HasSubstr("--documents paragraph has no effect"));
  EXPECT_EQ(refusal({"a.txt", "a.jsonl"}, DocumentUnit::kParagraph, "text"), "made");
  EXPECT_THAT(refusal({"a.txt", "a.jsonl"}, DocumentUnit::kFile, "body"),
              HasSubstr("has no key 'body'"));
}

TEST(Fetch, AnEndThatNoDocumentCanReachIsRefused) {
  const TemporaryFolder folder;
  FetchOptions options;
  options.sources = {"synthetic:copy,documents=10"};
  options.prepare.tokenizer = dataset::TokenizerKind::kBytes;
  options.prepare.output = folder.path() / "data";
  for (const int64_t tokens : {0, -5}) {
    options.most_tokens = tokens;
    const auto made = fetch(options, {}, {});
    ASSERT_FALSE(made) << tokens;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().what,
                HasSubstr("--tokens must be at least 1, not " + std::to_string(tokens)));
    EXPECT_FALSE(std::filesystem::exists(options.prepare.output));
  }
}

TEST(ByteStream, AFileThatIsNotCompressedIsSaidToBeSo) {
  const TemporaryFolder folder;
  const auto refusal = [&](Compression compression, const std::string& content) {
    auto source = open_local(folder.write("a.jsonl.gz", content));
    EXPECT_TRUE(source);
    char out[100];
    const auto got = make_stream(**source, "a.jsonl.gz", compression)->read(out);
    return got ? "nothing" : got.error().what;
  };
  const std::string text = "{\"text\": \"words\"}\n";
  EXPECT_EQ(refusal(Compression::kGzip, text), "a.jsonl.gz is not gzip, but its name says so");
  EXPECT_EQ(refusal(Compression::kZstd, text), "a.jsonl.gz is not Zstandard, but its name says so");
  // The first two bytes of gzip and its method are right. The data after them are damaged.
  EXPECT_THAT(refusal(Compression::kGzip, "\x1F\x8B\x08" + std::string(40, '\xFF')),
              HasSubstr("damaged compressed data"));
}

std::vector<Token> numbers(int first, int last) {
  std::vector<Token> tokens(static_cast<size_t>(last - first));
  std::iota(tokens.begin(), tokens.end(), static_cast<Token>(first));
  return tokens;
}

// Everything after the recorded state is cut off: in the open shard, in shards completed since
// then, and in shards begun since then.
TEST(SplitWriter, ContinuesFromTheRecordedStateAsIfNothingHadFollowed) {
  for (const int lost : {0, 1, 30, 40, 75, 200}) {
    const TemporaryFolder folder, whole;
    SplitState state;
    {
      SplitWriter writer(folder.path(), dataset::Split::kTrain, 40);
      ASSERT_TRUE(writer.append(numbers(0, 50)));
      auto recorded = writer.sync();
      ASSERT_TRUE(recorded) << recorded.error().what;
      state = std::move(*recorded);
      EXPECT_EQ(state.tokens(), 50);
      ASSERT_TRUE(writer.append(numbers(1000, 1000 + lost)));
    }
    SplitWriter writer(folder.path(), dataset::Split::kTrain, 40);
    SplitWriter undisturbed(whole.path(), dataset::Split::kTrain, 40);
    const Status resumed = writer.resume(state);
    ASSERT_TRUE(resumed) << lost << ": " << resumed.error().what;
    ASSERT_TRUE(writer.append(numbers(50, 130)));
    ASSERT_TRUE(undisturbed.append(numbers(0, 130)));
    ASSERT_TRUE(writer.finish());
    ASSERT_TRUE(undisturbed.finish());
    const auto one = writer.sync(), other = undisturbed.sync();
    ASSERT_EQ(one->shards.size(), 4u);
    for (size_t i = 0; i < one->shards.size(); ++i) {
      EXPECT_EQ(one->shards[i].checksum, other->shards[i].checksum) << lost << ", shard " << i;
      EXPECT_EQ(one->shards[i].file, other->shards[i].file);
    }
  }
}

TEST(SplitWriter, ALostShardIsToldAndNotFilledUp) {
  const TemporaryFolder folder;
  SplitState state;
  state.open_tokens = 10;
  SplitWriter missing(folder.path(), dataset::Split::kTrain, 40);
  EXPECT_EQ(missing.resume(state).error().code, ErrorCode::kNotFound);
  folder.write("train_000000.bin.tmp", std::string(1024 + 2 * 9, '\0'));
  SplitWriter torn(folder.path(), dataset::Split::kTrain, 40);
  EXPECT_EQ(torn.resume(state).error().code, ErrorCode::kCorrupt);
}

// The split of a document depends only on its text and the seed.
TEST(Draw, TheSameTextFallsToTheSameSideWhereverItStands) {
  dataset::PrepareOptions options;
  options.heldout_fraction = 0.5;
  const auto tokenizer = dataset::make_byte_tokenizer();
  auto sides = [&](const std::vector<std::string>& texts) {
    dataset::RawBatch batch;
    batch.draw = dataset::Draw::kByText;
    for (const std::string& text : texts) {
      batch.documents.push_back({batch.text.size(), batch.text.size() + text.size(), 0, 0});
      batch.text += text;
    }
    std::vector<dataset::Split> found;
    for (const auto& document : dataset::tokenise(batch, *tokenizer, options).order)
      found.push_back(document.split);
    return found;
  };
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back("document " + std::to_string(i));
  const auto forward = sides(texts);
  std::vector<std::string> backward(texts.rbegin(), texts.rend());
  auto reversed = sides(backward);
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(forward, reversed);
  const auto heldout = std::count(forward.begin(), forward.end(), dataset::Split::kHeldout);
  EXPECT_GT(heldout, 60);
  EXPECT_LT(heldout, 140);
}

Synthetic made(const std::string& source) {
  auto set = parse_synthetic(source);
  EXPECT_TRUE(set) << set.error().what;
  return set.value_or(Synthetic{});
}

TEST(Synthetic, ACopyRepeatsItsFirstHalf) {
  const std::string text = make_document(made("synthetic:copy,length=1001"), 3);
  ASSERT_EQ(text.size(), 1001u);
  EXPECT_EQ(text[500], '|');
  EXPECT_EQ(text.substr(0, 500), text.substr(501));
}

TEST(Synthetic, AKeyHasOneValueInADocumentAndOthersInOthers) {
  const Synthetic set = made("synthetic:induction,length=2000");
  std::set<std::pair<char, char>> all;
  for (const int64_t number : {0, 1, 2}) {
    const std::string text = make_document(set, number);
    ASSERT_EQ(text.size(), 2000u);
    std::map<char, char> values;
    for (size_t i = 0; i < text.size(); i += 2)
      EXPECT_EQ(values.emplace(text[i], text[i + 1]).first->second, text[i + 1]);
    EXPECT_EQ(values.size(), 26u);
    all.insert(values.begin(), values.end());
  }
  EXPECT_GT(all.size(), 50u);
}

TEST(Synthetic, ANeedleIsToldOnceAtAnyDepthAndAskedForAtTheEnd) {
  for (const int64_t length : {128, 129, 4096}) {
    const Synthetic set = made("synthetic:needle,seed=3,length=" + std::to_string(length));
    size_t least = SIZE_MAX, most = 0;
    for (int64_t number = 0; number < 200; ++number) {
      const std::string text = make_document(set, number);
      ASSERT_EQ(static_cast<int64_t>(text.size()), length);
      const std::string code = text.substr(text.size() - 7, 6);
      EXPECT_EQ(code.find_first_not_of("0123456789"), code.npos) << text;
      const size_t told = text.find("The code of "), asked = text.find("What is the code of ");
      ASSERT_LT(told, asked) << text;
      EXPECT_EQ(text.substr(told + 12, 5), text.substr(asked + 20, 5));
      EXPECT_EQ(text.substr(told + 21, 6), code) << text;
      least = std::min(least, told);
      most = std::max(most, told);
    }
    if (length == 4096) {
      EXPECT_LT(least, 400u);
      EXPECT_GT(most, 3600u);
    }
  }
}

TEST(Synthetic, ANameSaysEverythingAndMistakesAreRefused) {
  EXPECT_EQ(made("synthetic:copy").name(), "synthetic:copy,length=1024,documents=10000,seed=1");
  const Synthetic set = made("synthetic:needle,seed=3,documents=5");
  EXPECT_EQ(make_document(made(set.name()), 4), make_document(set, 4));
  EXPECT_NE(make_document(set, 4), make_document(set, 3));
  for (const char* wrong :
       {"synthetic:", "synthetic:nedle", "synthetic:copy,length",
        "synthetic:copy,length=", "synthetic:copy,length=1", "synthetic:copy,length=-5",
        "synthetic:copy,size=5", "synthetic:copy,documents=0", "synthetic:copy,,"}) {
    const auto set_of = parse_synthetic(wrong);
    ASSERT_FALSE(set_of) << wrong;
    EXPECT_EQ(set_of.error().code, ErrorCode::kInvalidArgument) << wrong;
  }
}

// A line that wraps would be drawn below itself again, ten times per second.
TEST(ProgressLine, NeverWrapsOnATerminal) {
  std::stringstream out, err, in;
  cli::Io io{out, err, in};
  io.err_is_terminal = true;
  io.current_width = [] { return 30; };
  cli::ProgressLine line(io);
  line.show(0, [] { return cli::bar(0.5, true, 20) + " and much more than there is room for"; });
  std::string drawn = err.str();
  ASSERT_TRUE(drawn.starts_with("\r") && drawn.ends_with("\x1b[K")) << drawn;
  drawn = drawn.substr(1, drawn.size() - 4);
  const auto characters = std::count_if(drawn.begin(), drawn.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
  EXPECT_EQ(characters, 29) << drawn;
  EXPECT_TRUE(drawn.ends_with("]  50% a")) << drawn;
}

} // namespace
} // namespace nsa::fetch
