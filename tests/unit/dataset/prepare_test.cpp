#include "common/dataset/tokenise.h"
#include "tests/unit/dataset/prepare_support.h"

#include <gmock/gmock.h>

namespace nsa::dataset {
namespace {

using test::slurp;
using test::TemporaryFolder;
using ::testing::HasSubstr;

// The correct result for paragraphs, computed from the definitions of split and separator.
std::string expected_split(const std::string& text, const PrepareOptions& options, Split split) {
  std::string result;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find_first_not_of('\n', text.find("\n\n", at));
    const std::string document = text.substr(at, end - at);
    if (split_of(number++, options.seed, options.heldout_fraction) == split)
      result += "<|endoftext|>" + document;
    at = std::min(end, text.size());
  }
  return result;
}

TEST(Prepare, ParagraphsBecomeSeparatedDocumentsOfTwoSplits) {
  const TemporaryFolder folder;
  const std::string text = some_text(300);
  const auto options = byte_options(folder, {folder.write("text.txt", text)});
  const auto result = prepare(options);
  ASSERT_TRUE(result) << result.error().what;
  const auto dataset = Dataset::open(options.output, Check::kChecksums);
  ASSERT_TRUE(dataset) << dataset.error().what;
  EXPECT_EQ(text_of(**dataset, Split::kTrain), expected_split(text, options, Split::kTrain));
  EXPECT_EQ(text_of(**dataset, Split::kHeldout), expected_split(text, options, Split::kHeldout));

  const Manifest& manifest = (*dataset)->manifest();
  EXPECT_EQ(manifest.documents, 300);
  EXPECT_GT(manifest.heldout_documents, 10);
  EXPECT_LT(manifest.heldout_documents, 60);
  EXPECT_EQ(manifest.tokens(Split::kTrain) + manifest.tokens(Split::kHeldout),
            static_cast<int64_t>(text.size()) + 300);
  EXPECT_EQ(manifest.text.tokens, static_cast<int64_t>(text.size()) + 300);
  EXPECT_GT(manifest.text.unigram_entropy_nats, manifest.text.bigram_entropy_nats);
  EXPECT_GT(manifest.heldout.bigram_entropy_nats, 1.0);
  ASSERT_EQ(manifest.sources.size(), 1u);
  EXPECT_EQ(manifest.sources[0].documents, 300);
  EXPECT_EQ(manifest.sources[0].checksum, checksum_hex(text));
  EXPECT_EQ(result->text_bytes, text.size());
  EXPECT_TRUE(verify(options.output)->empty());
}

// A hundredth of six documents would be none, and then a run could not be evaluated.
TEST(Prepare, OfFewDocumentsOneIsSetAside) {
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> files = {folder.write("empty.txt", "")};
  for (int i = 0; i < 6; ++i)
    files.push_back(folder.write("text" + std::to_string(i) + ".txt",
                                 std::string(1000, static_cast<char>('a' + i))));
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    PrepareOptions options = byte_options(folder, files);
    options.documents = DocumentUnit::kFile;
    options.heldout_fraction = 0.01;
    options.seed = seed;
    options.if_exists = IfExists::kReplace;
    const auto result = prepare(options);
    ASSERT_TRUE(result) << result.error().what;
    EXPECT_EQ(result->manifest.documents, 6);
    EXPECT_EQ(result->manifest.heldout_documents, 1);
    EXPECT_EQ(result->manifest.tokens(Split::kTrain) + result->manifest.tokens(Split::kHeldout),
              6 * 1001);
    EXPECT_EQ(result->empty_documents, 0); // an empty file is no document
    EXPECT_TRUE(verify(options.output)->empty());
    options.if_exists = IfExists::kReuse;
    EXPECT_TRUE(prepare(options)->reused) << "the fraction that was asked for is what is recorded";
  }
}

TEST(Prepare, ThreadsAndShardSizesDoNotChangeTheTokens) {
  const TemporaryFolder folder;
  const std::string text = some_text(30000); // several batches
  const auto file = folder.write("text.txt", text);
  std::string digest, train;
  for (const int threads : {1, 2, 5}) {
    auto options = byte_options(folder, {file});
    options.output = folder.path() / std::to_string(threads);
    options.threads = threads;
    const auto result = prepare(options);
    ASSERT_TRUE(result) << result.error().what;
    if (digest.empty()) digest = result->manifest.digest;
    EXPECT_EQ(result->manifest.digest, digest);
  }
  auto options = byte_options(folder, {file});
  options.shard_tokens = 100'003;
  ASSERT_TRUE(prepare(options));
  const auto small = Dataset::open(options.output, Check::kChecksums).value();
  const auto large = Dataset::open(folder.path() / "1", Check::kChecksums).value();
  EXPECT_GT(small->manifest().shards.size(), 30u);
  for (const Split split : {Split::kTrain, Split::kHeldout})
    EXPECT_EQ(text_of(*small, split), text_of(*large, split));
}

TEST(Prepare, FoldersAreWalkedInOrderAndOtherFilesPassedOver) {
  const TemporaryFolder folder;
  folder.write("in/b.txt", "bravo");
  folder.write("in/a/x.md", "alpha");
  folder.write("in/c.txt.gz", gzip("char") + gzip("lie")); // a file of two gzip members
  folder.write("in/d.jsonl", "{\"text\": \"del\\nta\"}\n\n{\"id\": 1, \"text\": \"echo\"}\n");
  folder.write("in/e.jsonl.gz", gzip("{\"text\": \"foxtrot\"}\n{\"text\": \"\"}"));
  folder.write("in/image.png", "no text");
  folder.write("in/.hidden.txt", "no text");
  auto options = byte_options(folder, {folder.path() / "in"});
  options.documents = DocumentUnit::kFile;
  options.heldout_fraction = 0;
  const auto result = prepare(options);
  ASSERT_TRUE(result) << result.error().what;
  const auto dataset = Dataset::open(options.output, Check::kChecksums).value();
  const std::string separator = "<|endoftext|>";
  EXPECT_EQ(text_of(*dataset, Split::kTrain), separator + "alpha" + separator + "bravo" +
                                                  separator + "charlie" + separator + "del\nta" +
                                                  separator + "echo" + separator + "foxtrot");
  EXPECT_EQ(result->empty_documents, 2); // a blank row and an empty text
  ASSERT_EQ(result->passed_over.size(), 1u);
  EXPECT_THAT(result->passed_over[0], HasSubstr("image.png"));
}

TEST(Prepare, IllFormedTextIsReplacedOrKeptWhenAskedFor) {
  const TemporaryFolder folder;
  const auto file = folder.write("text.txt", "a\xFFz");
  auto options = byte_options(folder, {file});
  options.heldout_fraction = 0;
  options.invalid_utf8 = InvalidUtf8::kReplace;
  const auto replaced = prepare(options);
  ASSERT_TRUE(replaced) << replaced.error().what;
  EXPECT_EQ(replaced->manifest.replaced_characters, 1);
  EXPECT_EQ(text_of(*Dataset::open(options.output, Check::kSizes).value(), Split::kTrain),
            "<|endoftext|>a\uFFFDz");
  options.invalid_utf8 = InvalidUtf8::kKeep;
  options.if_exists = IfExists::kReplace;
  ASSERT_TRUE(prepare(options));
  EXPECT_EQ(text_of(*Dataset::open(options.output, Check::kSizes).value(), Split::kTrain),
            "<|endoftext|>a\xFFz");
}

TEST(Prepare, ReuseAsksWhetherAnythingChanged) {
  const TemporaryFolder folder;
  const auto file = folder.write("text.txt", some_text(50));
  auto options = byte_options(folder, {file});
  ASSERT_TRUE(prepare(options));
  EXPECT_EQ(prepare(options).error().code, ErrorCode::kConflict);
  options.if_exists = IfExists::kReuse;
  const auto again = prepare(options);
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_TRUE(again->reused);

  options.seed = 2;
  EXPECT_EQ(prepare(options).error().code, ErrorCode::kConflict);
  options.seed = 1;
  folder.write("text.txt", some_text(51));
  EXPECT_EQ(prepare(options).error().code, ErrorCode::kConflict);
  options.if_exists = IfExists::kReplace;
  const auto replaced = prepare(options);
  ASSERT_TRUE(replaced) << replaced.error().what;
  EXPECT_EQ(Dataset::open(options.output, Check::kChecksums).value()->manifest().documents, 51);
  EXPECT_FALSE(std::filesystem::exists(options.output.string() + ".preparing"));
}

TEST(Prepare, ProgressGrowsToTheEnd) {
  const TemporaryFolder folder;
  auto options = byte_options(folder, {folder.write("text.txt", some_text(5000))});
  uint64_t last = 0;
  bool finished = false;
  const auto result = prepare(options, [&](const PrepareProgress& progress) {
    EXPECT_GE(progress.bytes_done, last);
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
    last = progress.bytes_done;
    finished = progress.stage == PrepareProgress::Stage::kFinishing;
  });
  ASSERT_TRUE(result);
  EXPECT_TRUE(finished);
  EXPECT_EQ(last, std::filesystem::file_size(folder.path() / "text.txt"));
}

TEST(Prepare, HeldoutFractionIsMet) {
  int64_t heldout = 0;
  for (int64_t number = 0; number < 100'000; ++number)
    heldout += split_of(number, 17, 0.01) == Split::kHeldout;
  EXPECT_NEAR(static_cast<double>(heldout), 1000, 120); // 4 standard deviations
}

TEST(Adopt, ForeignShardsBecomeADataSet) {
  const TemporaryFolder folder;
  auto write = [&](const std::string& name, std::vector<Token> tokens) {
    auto writer = ShardWriter::create(folder.path() / name).value();
    ASSERT_TRUE(writer.append(tokens));
    ASSERT_TRUE(writer.finish());
  };
  write("text_val_000000.bin", {256, 72, 105});
  write("text_train_000001.bin", {256, 1, 2, 256, 3});
  AdoptOptions options{folder.path(), ShardFormat::kLlmC, TokenizerKind::kBytes, {}};
  const auto manifest = adopt(options);
  ASSERT_TRUE(manifest) << manifest.error().what;
  EXPECT_EQ(manifest->documents, 3);
  EXPECT_EQ(manifest->tokens(Split::kHeldout), 3);
  const auto dataset = Dataset::open(folder.path(), Check::kChecksums).value();
  EXPECT_EQ(text_of(*dataset, Split::kHeldout), "<|endoftext|>Hi");
  EXPECT_EQ(adopt(options).error().code, ErrorCode::kConflict);
}

TEST(Adopt, IdsPastTheVocabularyAreRefused) {
  const TemporaryFolder folder;
  auto writer = ShardWriter::create(folder.path() / "a.bin").value();
  ASSERT_TRUE(writer.append(std::vector<Token>{1, 50256}));
  ASSERT_TRUE(writer.finish());
  const auto manifest = adopt({folder.path(), ShardFormat::kLlmC, TokenizerKind::kBytes, {}});
  ASSERT_FALSE(manifest);
  EXPECT_THAT(manifest.error().what, HasSubstr("50256"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / kManifestFile));
}

} // namespace
} // namespace nsa::dataset
