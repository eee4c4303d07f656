// prepare() with bad input, when it is interrupted, and when it is killed.
#include "tests/unit/dataset/prepare_support.h"

#include <csignal>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::dataset {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

// Returns the error of a preparation that must fail, and checks that it left no output.
Error failure(const PrepareOptions& options, std::stop_token stop = {}) {
  const auto result = prepare(options, {}, std::move(stop));
  if (result) {
    ADD_FAILURE() << "prepare succeeded";
    return {};
  }
  EXPECT_FALSE(std::filesystem::exists(options.output));
  EXPECT_FALSE(std::filesystem::exists(options.output.string() + ".preparing"));
  return result.error();
}

TEST(PrepareFailure, IllFormedTextIsNamedByFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = some_text(3000), bad = some_text(10) + "one\ntwo\nthr\xFF"
                                                                  "ee\n";
  const auto lines = std::count(bad.begin(), bad.end(), '\n');
  auto options =
      byte_options(folder, {folder.write("good.txt", good), folder.write("bad.txt", bad)});
  EXPECT_THAT(failure(options).what, HasSubstr("bad.txt:" + std::to_string(lines) + ": "));
}

TEST(PrepareFailure, BadRowsAreNamedByFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = "{\"text\": \"fine\"}\n";
  const std::pair<const char*, const char*> rows[] = {{"{\"text\": 3}", "'text' is number"},
                                                      {"{\"body\": \"x\"}", "no key 'text'"},
                                                      {"[1, 2]", "no JSON object"},
                                                      {"{\"text\": \"cut", "not JSON"},
                                                      {"nonsense", "not JSON"},
                                                      {"{\"text\": \"a\xFF\"}", "not UTF-8"}};
  for (const auto& [row, why] : rows) {
    const auto options =
        byte_options(folder, {folder.write("rows.jsonl", good + good + row + "\n" + good)});
    const Error error = failure(options);
    EXPECT_THAT(error.what, HasSubstr("rows.jsonl:3: ")) << row;
    EXPECT_THAT(error.what, HasSubstr(why)) << row;
  }
}

TEST(PrepareFailure, DamagedGzipIsFound) {
  const TemporaryFolder folder;
  const std::string packed = gzip(some_text(500));
  auto of = [&](const std::string& content) {
    return failure(byte_options(folder, {folder.write("text.gz", content)})).what;
  };
  EXPECT_THAT(of(packed.substr(0, packed.size() / 2)), HasSubstr("middle of its compressed data"));
  EXPECT_THAT(of(packed.substr(0, packed.size() - 1)), HasSubstr("text.gz"));
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 0x10;
  EXPECT_THAT(of(flipped), HasSubstr("text.gz"));
  EXPECT_THAT(of(packed + "trailing"), HasSubstr("damaged gzip data"));
}

TEST(PrepareFailure, AFileThatIsNamedGzipAndIsNoneIsRefused) {
  const TemporaryFolder folder;
  for (const std::string& content : {some_text(500), std::string("<html>404 Not Found</html>"),
                                     std::string("\x1F"), std::string()})
    for (const char* const name : {"text.gz", "text.txt.dz", "rows.jsonl.gz"}) {
      const Error error = failure(byte_options(folder, {folder.write(name, content)}));
      EXPECT_EQ(error.code, ErrorCode::kCorrupt);
      EXPECT_THAT(error.what, HasSubstr(std::string(name) + " is not gzip, but its name says so"));
      EXPECT_THAT(error.next, HasSubstr("fetch it again"));
    }
  // A compressed file without the name's ending is no mistake: gzip is recognised by its content.
  EXPECT_TRUE(
      prepare(byte_options(folder, {folder.write("text.txt", gzip(some_text(500)))}), {}, {}));
}

TEST(PrepareFailure, NothingToDoAndNothingToSetAside) {
  const TemporaryFolder folder;
  EXPECT_EQ(failure(byte_options(folder, {folder.path() / "absent.txt"})).code,
            ErrorCode::kNotFound);
  folder.write("pictures/a.png", "x");
  EXPECT_THAT(failure(byte_options(folder, {folder.path() / "pictures"})).what, HasSubstr("a.png"));
  const auto file = folder.write("one.txt", "a single document");
  auto options = byte_options(folder, {file});
  const Error error = failure(options);
  EXPECT_THAT(error.what, HasSubstr("too few documents"));
  EXPECT_THAT(error.next, HasSubstr("--documents paragraph"));
  EXPECT_THAT(failure(byte_options(folder, {file, file})).what, HasSubstr("given twice"));
  EXPECT_THAT(failure(byte_options(folder, {folder.write("empty.txt", "")})).what,
              HasSubstr("no text"));
}

TEST(PrepareFailure, WhatIsNoTextIsNamed) {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& name, const std::string& content) {
    return failure(byte_options(folder, {folder.write(name, content)}));
  };
  const Error parquet = of("rows.parquet", std::string("PAR1\x15\x04\x15", 7) + some_text(3));
  EXPECT_THAT(parquet.what, HasSubstr("rows.parquet is no text: a Parquet file"));
  EXPECT_THAT(parquet.next, HasSubstr("nsactl data fetch"));
  EXPECT_THAT(of("text.zst", "\x28\xB5\x2F\xFD").next, HasSubstr("zstd -d"));
}

TEST(PrepareFailure, OptionsThatContradictAreRefused) {
  const TemporaryFolder folder;
  const auto good = byte_options(folder, {folder.write("a.txt", some_text(20))});
  auto changed = [&](auto change) {
    PrepareOptions options = good;
    change(options);
    return failure(options).code;
  };
  EXPECT_EQ(changed([](auto& o) { o.heldout_fraction = 0.9; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(changed([](auto& o) { o.shard_tokens = 0; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(changed([](auto& o) { o.inputs.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(changed([](auto& o) {
              o.documents = DocumentUnit::kFile;
              o.min_document_bytes = 10;
            }),
            ErrorCode::kInvalidArgument);
}

TEST(PrepareFailure, AFolderThatIsNoDataSetIsNeverReplaced) {
  const TemporaryFolder folder;
  auto options = byte_options(folder, {folder.write("a.txt", some_text(20))});
  folder.write("data/thesis.txt", "years of work");
  options.if_exists = IfExists::kReplace;
  EXPECT_EQ(prepare(options).error().code, ErrorCode::kConflict);
  EXPECT_EQ(test::slurp(folder.path() / "data/thesis.txt"), "years of work");
}

TEST(PrepareFailure, AStopRequestLeavesNothing) {
  const TemporaryFolder folder;
  auto options = byte_options(folder, {folder.write("a.txt", some_text(20000))});
  std::stop_source stop;
  stop.request_stop();
  const Error error = failure(options, stop.get_token());
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.what, HasSubstr("interrupted"));
}

TEST(PrepareFailure, KilledInTheMiddleItLeavesNoDataSetAndTheNextOneCleansUp) {
  const TemporaryFolder folder;
  auto options = byte_options(folder, {folder.write("a.txt", some_text(20000))});
  options.shard_tokens = 50'000;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) { // ends when all shards are written but the manifest is not
    (void)prepare(options, [](const PrepareProgress& progress) {
      if (progress.stage == PrepareProgress::Stage::kFinishing) ::raise(SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  const std::filesystem::path work = options.output.string() + ".preparing";
  ASSERT_TRUE(std::filesystem::exists(work / "train_000000.bin"));
  EXPECT_FALSE(Dataset::open(work, Check::kSizes));

  const auto result = prepare(options);
  ASSERT_TRUE(result) << result.error().what;
  EXPECT_FALSE(std::filesystem::exists(work));
  EXPECT_TRUE(verify(options.output)->empty());
}

TEST(PrepareFailure, TwoAtOnceAreRefused) {
  const TemporaryFolder folder;
  auto options = byte_options(folder, {folder.write("a.txt", some_text(20))});
  const std::filesystem::path work = options.output.string() + ".preparing";
  std::filesystem::create_directory(work);
  const UniqueFd other(::open(work.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  const auto result = prepare(options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(std::filesystem::exists(work)); // it belongs to the other preparation
}

} // namespace
} // namespace nsa::dataset
