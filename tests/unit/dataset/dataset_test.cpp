#include "common/base/json.h"
#include "common/dataset/fit.h"
#include "common/dataset/mixture.h"
#include "tests/unit/dataset/prepare_support.h"

#include <gmock/gmock.h>

namespace nsa::dataset {
namespace {

using test::slurp;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DatasetTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto options = byte_options(folder_, {folder_.write("text.txt", some_text(200))});
    options.shard_tokens = 7000;
    const auto result = prepare(options);
    ASSERT_TRUE(result) << result.error().what;
    ASSERT_GT(result->manifest.shards.size(), 3u);
    data_ = options.output;
  }

  // Both the reader and verify() must refuse, and name the file.
  void expect_refused(const std::string& file) {
    const auto opened = Dataset::open(data_, Check::kChecksums);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().what, HasSubstr(file));
    const auto findings = verify(data_);
    ASSERT_TRUE(findings);
    ASSERT_EQ(findings->size(), 1u);
    EXPECT_EQ(findings->front().file, file);
  }

  TemporaryFolder folder_;
  std::filesystem::path data_;
};

TEST_F(DatasetTest, OneFlippedBitAnywhereIsFound) {
  const std::string whole = slurp(data_ / "train_000001.bin");
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::string flipped = whole;
    // This includes unused fields of the header: the file differs from the one that was written.
    flipped[round < 5 ? random() % kShardHeaderBytes : random() % flipped.size()] ^=
        static_cast<char>(1 << random() % 8);
    folder_.write("data/train_000001.bin", flipped);
    expect_refused("train_000001.bin");
  }
  folder_.write("data/train_000001.bin", whole);
  EXPECT_TRUE(Dataset::open(data_, Check::kChecksums));
}

TEST_F(DatasetTest, ATornOrMissingShardIsFoundWithoutReadingIt) {
  const std::string whole = slurp(data_ / "train_000002.bin");
  for (const size_t length :
       {size_t{0}, size_t{500}, size_t{1024}, whole.size() / 2, whole.size() - 1}) {
    folder_.write("data/train_000002.bin", whole.substr(0, length));
    EXPECT_FALSE(Dataset::open(data_, Check::kSizes)) << length;
    expect_refused("train_000002.bin");
  }
  // A shorter file whose header agrees with its size. The manifest has the right size.
  std::string shorter = whole.substr(0, 1024 + 200);
  shorter[8] = 100;
  shorter[9] = 0;
  folder_.write("data/train_000002.bin", shorter);
  EXPECT_FALSE(Dataset::open(data_, Check::kSizes));
  std::filesystem::remove(data_ / "train_000002.bin");
  EXPECT_FALSE(Dataset::open(data_, Check::kSizes));
  expect_refused("train_000002.bin");
}

TEST_F(DatasetTest, SwappedShardsAreFound) {
  const std::string first = slurp(data_ / "train_000000.bin"),
                    second = slurp(data_ / "train_000001.bin");
  folder_.write("data/train_000000.bin", second);
  folder_.write("data/train_000001.bin", first);
  EXPECT_FALSE(Dataset::open(data_, Check::kChecksums));
  EXPECT_EQ(verify(data_)->size(), 2u);
}

TEST_F(DatasetTest, TheManifestIsHeldAgainstItsDigest) {
  nlohmann::json manifest = nlohmann::json::parse(slurp(data_ / kManifestFile));
  const auto original = manifest;
  const auto expect_corrupt = [&](const char* what) {
    folder_.write("data/dataset.json", manifest.dump());
    const auto opened = Dataset::open(data_, Check::kSizes);
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt) << opened.error().what;
    manifest = original;
  };
  manifest["shards"].erase(1);
  expect_corrupt("a shard less");
  std::swap(manifest["shards"][1], manifest["shards"][2]);
  expect_corrupt("another order");
  manifest["shards"][0]["split"] = "train";
  expect_corrupt("another split");
  manifest["shards"][0]["file"] = "../elsewhere.bin";
  expect_corrupt("a file outside the folder");
  manifest["tokenizer"]["separator"] = 0;
  expect_corrupt("another separator");
  manifest.erase("tokenizer");
  expect_corrupt("a missing key");
  manifest["version"] = 2;
  expect_corrupt("a later version");
  folder_.write("data/dataset.json", original.dump().substr(0, 100));
  EXPECT_FALSE(Dataset::open(data_, Check::kSizes));
}

TEST_F(DatasetTest, ARunFileThatDoesNotFitIsToldAtItsPlaces) {
  const auto fit = [&](const std::vector<std::string>& overrides) {
    const std::string file = "schema = 1\n[data]\npath = \"" + data_.string() +
                             "\"\n[train]\nsteps = 1\nsequence_length = 1048576\n";
    return check_fit(spec::parse_run_file(file, "run.toml", overrides), "run.toml");
  };
  const auto manifest = read_manifest(data_);
  const std::string ids = std::to_string(manifest->tokenizer.vocabulary_size);
  const Fit all = fit({"model.vocabulary=2"});
  EXPECT_TRUE(all.absent.empty());
  ASSERT_EQ(all.problems.size(), 3u) << "vocabulary, and each split";
  EXPECT_EQ(all.problems[0].key, "model.vocabulary");
  EXPECT_EQ(all.problems[0].file, "--set");
  EXPECT_NE(all.problems[0].what.find("at least " + ids + ", not 2"), std::string::npos);
  EXPECT_EQ(all.problems[1].key, "train.sequence_length");
  EXPECT_EQ(all.problems[1].line, 6);
  EXPECT_NE(all.problems[1].what.find("train split"), std::string::npos);
  EXPECT_NE(all.problems[2].what.find("held-out split"), std::string::npos);
  const std::string train = std::to_string(manifest->tokens(Split::kTrain));
  EXPECT_NE(all.problems[1].what.find("has " + train + " tokens"), std::string::npos);
  EXPECT_EQ(fit({"eval.at_end=false"}).problems.size(), 1u) << "nothing is held out of use";
  EXPECT_TRUE(fit({"train.sequence_length=many", "model.vocabulary=" + ids}).problems.empty())
      << "a key with a mistake is not judged again";
  const std::string longest = std::to_string(manifest->tokens(Split::kTrain) - 1);
  EXPECT_TRUE(fit({"train.sequence_length=" + longest, "eval.at_end=false"}).problems.empty());
  const Fit none = fit({"data.path=" + (data_ / "none").string()});
  ASSERT_EQ(none.absent.size(), 1u);
  EXPECT_EQ(none.absent[0].key, "data.path");
  EXPECT_TRUE(none.problems.empty()) << "whether it may be made later is the caller's to say";
  // If a manifest cannot be read, the error names the place in it, before any rank starts.
  const auto unreadable = [&](const std::string& text) {
    folder_.write("data/dataset.json", text);
    const Fit found = fit({});
    EXPECT_TRUE(found.absent.empty());
    if (found.problems.size() != 1) return std::to_string(found.problems.size()) + " problems";
    EXPECT_EQ(found.problems[0].key, "data.path");
    EXPECT_EQ(found.problems[0].line, 3);
    EXPECT_EQ(found.problems[0].next, "prepare the data set again");
    return found.problems[0].what;
  };
  EXPECT_THAT(unreadable("{\n  \"version\": 1,\n  \"digest\" \"ab\"\n}"),
              StartsWith((data_ / "dataset.json").string() + ", line 3, column 15: not JSON"));
  EXPECT_THAT(unreadable("{}"), HasSubstr("dataset.json: key 'version' not found"));
  EXPECT_THAT(unreadable(""), HasSubstr("line 1, column 1"));
}

// The tokenizer's record is part of the digest, so the test cannot edit it. It makes another data
// set instead.
TEST_F(DatasetTest, NeedlesAreAskedForInANeedleSetAlone) {
  const auto fit = [&] {
    const std::string file = "schema = 1\n[data]\npath = \"" + data_.string() +
                             "\"\n[train]\nsteps = 1\nsequence_length = 128\n"
                             "[eval]\nneedles = 5\n";
    return check_fit(spec::parse_run_file(file, "run.toml"), "run.toml");
  };
  const Fit prose = fit();
  ASSERT_EQ(prose.problems.size(), 1u);
  EXPECT_THAT(spec::format_problem(prose.problems[0]),
              HasSubstr("run.toml:8:11: eval.needles: is 5, but no data set"));
  Manifest manifest = *read_manifest(data_);
  for (SourceRecord& source : manifest.sources)
    source.path = "synthetic:needle,length=256,documents=10,seed=1";
  ASSERT_TRUE(write_manifest(data_, manifest));
  EXPECT_TRUE(fit().problems.empty());
}

TEST_F(DatasetTest, SourcesOfAMixtureFitEachOther) {
  auto other = byte_options(folder_, {folder_.write("other.txt", some_text(50, 2))});
  other.output = folder_.path() / "other";
  ASSERT_TRUE(prepare(other));
  const auto foreign = folder_.path() / "foreign";
  std::filesystem::copy(other.output, foreign);
  Manifest changed = *read_manifest(foreign);
  changed.tokenizer = {"gpt2", "another digest", 50257, 50256};
  changed.digest = dataset_digest(changed);
  ASSERT_TRUE(write_manifest(foreign, changed));
  std::filesystem::copy(data_, folder_.path() / "copy");
  const auto fit = [&](const std::string& second) {
    const std::string file = "schema = 1\n[train]\nsteps = 1\nsequence_length = 128\n"
                             "[[data.source]]\npath = \"" +
                             data_.string() + "\"\n[[data.source]]\npath = \"" +
                             (folder_.path() / second).string() + "\"\n";
    return check_fit(spec::parse_run_file(file, "run.toml"), "run.toml");
  };
  const Fit good = fit("other");
  EXPECT_TRUE(good.problems.empty()) << spec::format_problem(good.problems[0]);
  EXPECT_TRUE(good.absent.empty());
  const Fit mixed = fit("foreign");
  ASSERT_EQ(mixed.problems.size(), 1u);
  EXPECT_EQ(spec::format_problem(mixed.problems[0]),
            "run.toml:8:8: data.source[1].path: has text of tokenizer gpt2, and "
            "data.source[0].path has text of bytes\n  hint: prepare the text with the same "
            "tokenizer: nsactl data prepare --tokenizer bytes");
  const Fit twice = fit("copy");
  ASSERT_EQ(twice.problems.size(), 1u);
  EXPECT_THAT(twice.problems[0].what, HasSubstr("same data set as data.source[0].path"));
  const Fit none = fit("none");
  ASSERT_EQ(none.absent.size(), 1u);
  EXPECT_EQ(none.absent[0].key, "data.source[1].path");
}

TEST_F(DatasetTest, AMixtureHasADigestOfItsOwn) {
  const std::vector<MixedSource> one = {{"a", 1}}, two = {{"a", 1}, {"b", 2}},
                                 swapped = {{"b", 2}, {"a", 1}}, weighted = {{"a", 2}, {"b", 2}};
  EXPECT_EQ(mixture_digest(one), "a");
  EXPECT_NE(mixture_digest(two), mixture_digest(swapped));
  EXPECT_NE(mixture_digest(two), mixture_digest(weighted));
  const auto text = read_text({.path = data_.string()});
  ASSERT_TRUE(text);
  EXPECT_EQ(text->digest, read_manifest(data_)->digest);
  EXPECT_EQ(text->tokenizer().name, "bytes");
}

TEST_F(DatasetTest, ManifestsComeBackAsTheyWere) {
  const std::string text = slurp(data_ / kManifestFile);
  const auto manifest = parse_manifest(text);
  ASSERT_TRUE(manifest) << manifest.error().what;
  EXPECT_EQ(to_json(*manifest), text);
  const auto json = nlohmann::json::parse(text);
  EXPECT_GT(json.at("unigram_entropy_nats").get<double>(),
            json.at("bigram_entropy_nats").get<double>());
  EXPECT_EQ(json.at("tokenizer").at("padded_vocabulary_size"), 320);
}

TEST_F(DatasetTest, TokensAreOneSequenceAcrossShards) {
  const auto dataset = Dataset::open(data_, Check::kSizes).value();
  const TokenSequence& train = dataset->tokens(Split::kTrain);
  std::vector<Token> all(static_cast<size_t>(train.size()));
  train.copy(0, std::span(all));
  std::mt19937 random(8);
  for (int round = 0; round < 300; ++round) {
    const size_t begin = random() % all.size(), count = random() % (all.size() - begin + 1);
    std::vector<int64_t> part(count);
    train.copy(static_cast<int64_t>(begin), std::span(part));
    ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<long>(begin)));
  }
}

TEST(Dataset, AFolderWithoutManifestSaysHowToMakeOne) {
  const TemporaryFolder folder;
  const auto opened = Dataset::open(folder.path(), Check::kSizes);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(opened.error().next, HasSubstr("nsactl data prepare"));
}

} // namespace
} // namespace nsa::dataset
