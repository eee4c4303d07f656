// Checkpoint manifests with real damage: torn, bit-flipped, missing and foreign files.
#include "common/manifest/manifest.h"

#include "common/base/checksum.h"
#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace {
// How this program's own link() and fsync() behave, and what they record.
struct Disk {
  bool links_fail = false;
  std::vector<std::string> synced;
};
Disk& disk() {
  static Disk instance;
  return instance;
}
} // namespace

extern "C" int link(const char* from, const char* to) noexcept {
  if (disk().links_fail) {
    errno = EPERM; // as on a file system without hard links
    return -1;
  }
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

extern "C" int fsync(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  if (size > 0) disk().synced.emplace_back(path, static_cast<size_t>(size));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace nsa::manifest {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class ManifestTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-manifest-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Manifest sample(uint64_t step) {
    Manifest m;
    m.run_id = "abcde";
    m.attempt = 2;
    m.step = step;
    m.tokens = step * 1024;
    m.world_size = 2;
    m.threads = 1;
    m.device = "cpu";
    m.precision = "master";
    m.compute = "fp32";
    m.loss = 2.718281828459045;
    m.data = {42, 1, 17, 512, std::string(32, 'a')};
    m.toggles = {{"attention.kernels", "aten"}};
    m.spec_digest = std::string(32, 'b');
    m.build = "0.1.0+test";
    m.versions = {{"libtorch", "2.11.0"}};
    m.written_at = "2026-01-31T09:12:01.123Z";
    return m;
  }

  // Writes a complete checkpoint with one data file, as a worker does.
  fs::path make_checkpoint(uint64_t step) {
    const fs::path at = folder_ / folder_name(step);
    fs::create_directories(at);
    const std::string content = "weights of step " + std::to_string(step) + std::string(4096, 'w');
    EXPECT_TRUE(write_file_atomic(at / "model.safetensors", content));
    Manifest m = sample(step);
    m.files = {{"model.safetensors", content.size(), checksum_hex(content)}};
    EXPECT_TRUE(write_file_atomic(at / kManifestName, to_json(m).dump(2)));
    return at;
  }

  static void flip_bit(const fs::path& path, std::streamoff offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get());
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 0x10));
    ASSERT_TRUE(file.good());
  }

  fs::path folder_;
};

TEST_F(ManifestTest, RoundTripsEveryField) {
  const fs::path at = make_checkpoint(120);
  auto m = read(at);
  ASSERT_TRUE(m) << m.error().what;
  EXPECT_EQ(to_json(*m), [&] {
    Manifest expected = sample(120);
    expected.files = m->files;
    return to_json(expected);
  }());
  EXPECT_EQ(m->data.index, 17u);
  EXPECT_EQ(m->data.sequence_length, 512);
  EXPECT_EQ(m->loss, 2.718281828459045);
  EXPECT_TRUE(verify(at, *m));
}

TEST_F(ManifestTest, TheSourcesOfAMixtureSurvive) {
  Manifest m = sample(1);
  m.files = {{"model.safetensors", 1, std::string(32, '0')}};
  EXPECT_FALSE(to_json(m)["data"].contains("sources")) << "of one data set";
  m.data.sources = {{std::string(32, 'c'), 7}, {std::string(32, 'd'), 3}};
  const auto back = from_json(nlohmann::json::parse(to_json(m).dump()));
  ASSERT_TRUE(back) << back.error().what;
  ASSERT_EQ(back->data.sources.size(), 2u);
  EXPECT_EQ(back->data.sources[1].digest, std::string(32, 'd'));
  EXPECT_EQ(back->data.sources[1].weight, 3);
}

TEST_F(ManifestTest, TheGenerationsThatWereReadSurvive) {
  Manifest m = sample(1);
  m.files = {{"model.safetensors", 1, std::string(32, '0')}};
  EXPECT_FALSE(to_json(m)["data"].contains("generations")) << "without data.follow";
  m.data.generations = 3;
  m.data.generations_digest = std::string(32, 'e');
  const auto back = from_json(nlohmann::json::parse(to_json(m).dump()));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(back->data.generations, 3u);
  EXPECT_EQ(back->data.generations_digest, m.data.generations_digest);
}

TEST_F(ManifestTest, LossThatIsNotANumberSurvives) {
  Manifest m = sample(1);
  m.files = {{"model.safetensors", 1, std::string(32, '0')}};
  m.finite = false;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  auto back = from_json(nlohmann::json::parse(to_json(m).dump()));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_TRUE(std::isnan(back->loss));
  EXPECT_FALSE(back->finite);
}

TEST_F(ManifestTest, FolderNamesAreOneToOne) {
  EXPECT_EQ(folder_name(120), "step-00000120");
  EXPECT_EQ(step_of_folder("step-00000120"), 120u);
  EXPECT_EQ(step_of_folder(folder_name(123456789012)), 123456789012u);
  for (const char* other : {"step-120", "step-00000120.tmp", "step-", "step-0000012x", "latest",
                            "step-000000120", "step-99999999999999999999999"})
    EXPECT_EQ(step_of_folder(other), std::nullopt) << other;
}

TEST_F(ManifestTest, BitFlipInDataIsFound) {
  const fs::path at = make_checkpoint(7);
  flip_bit(at / "model.safetensors", 100);
  auto status = verify(at, *read(at));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().what, HasSubstr("model.safetensors has checksum"));
}

TEST_F(ManifestTest, TornDataIsFound) {
  const fs::path at = make_checkpoint(7);
  fs::resize_file(at / "model.safetensors", 1000);
  auto status = verify(at, *read(at));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("has 1000 bytes"));
}

TEST_F(ManifestTest, MissingDataAndMissingManifestAreFound) {
  const fs::path at = make_checkpoint(7);
  auto m = read(at);
  fs::remove(at / "model.safetensors");
  auto status = verify(at, *m);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("is missing"));
  fs::remove(at / kManifestName);
  auto none = read(at);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
}

TEST_F(ManifestTest, LinkInPlaceOfAFileIsNotFollowed) {
  const fs::path at = make_checkpoint(7);
  fs::rename(at / "model.safetensors", folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", at / "model.safetensors");
  EXPECT_FALSE(verify(at, *read(at)));
}

// Every single-bit error in the manifest's text must be found, for example in a digit of the step
// or in a brace.
TEST_F(ManifestTest, AnyFlippedBitInTheManifestIsFound) {
  const std::string text = *read_file(make_checkpoint(120) / kManifestName);
  const auto original = nlohmann::json::parse(text);
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto j = nlohmann::json::parse(damaged, nullptr, false);
      if (j.is_discarded() || j == original) continue; // one white space became another one
      EXPECT_FALSE(from_json(j)) << "byte " << i << " bit " << bit;
    }
  }
}

TEST_F(ManifestTest, TornManifestIsCorrupt) {
  const fs::path at = make_checkpoint(9);
  fs::resize_file(at / kManifestName, fs::file_size(at / kManifestName) / 2);
  auto m = read(at);
  ASSERT_FALSE(m);
  EXPECT_EQ(m.error().code, ErrorCode::kCorrupt);
}

TEST_F(ManifestTest, ManifestOfAnotherStepIsCorrupt) {
  const fs::path at = make_checkpoint(9);
  fs::rename(at, folder_ / folder_name(10));
  auto m = read(folder_ / folder_name(10));
  ASSERT_FALSE(m);
  EXPECT_THAT(m.error().what, HasSubstr("manifest of step 9"));
}

TEST_F(ManifestTest, FilesOutsideTheFolderAreRefused) {
  for (const char* name : {"../secret", "/etc/passwd", "", "..", "a/b"}) {
    Manifest m = sample(1);
    m.files = {{name, 1, std::string(32, '0')}};
    EXPECT_FALSE(from_json(to_json(m))) << name;
  }
}

TEST_F(ManifestTest, NewerFormatIsUnsupported) {
  Manifest m = sample(1);
  m.format = 2;
  m.files = {{"x", 1, std::string(32, '0')}};
  auto back = from_json(to_json(m));
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::kUnsupported);
}

TEST_F(ManifestTest, ChoosesNewestThatVerifiesAndSaysWhatItPassedOver) {
  make_checkpoint(100);
  make_checkpoint(200);
  flip_bit(make_checkpoint(300) / "model.safetensors", 5);
  fs::remove(make_checkpoint(400) / kManifestName);
  fs::create_directories(folder_ / "step-00000500.tmp"); // left by a writer that was killed
  const Choice choice = choose_newest_verified(folder_);
  ASSERT_TRUE(choice.chosen);
  EXPECT_EQ(choice.chosen->step, 200u);
  ASSERT_EQ(choice.rejected.size(), 2u);
  EXPECT_EQ(choice.rejected[0].step, 400u);
  EXPECT_EQ(choice.rejected[1].step, 300u);
  EXPECT_THAT(choice.rejected[1].problem, HasSubstr("checksum"));
}

TEST_F(ManifestTest, WhatAnAttemptWroteTooLateIsPassedOver) {
  make_checkpoint(100);
  make_checkpoint(200);
  make_checkpoint(300);
  const int attempt = read(folder_ / folder_name(300))->attempt;
  const auto chosen = [&](int of, uint64_t from) {
    return choose_newest_verified(folder_, {{of, from, "its sums are of different steps"}})
        .chosen->step;
  };
  EXPECT_EQ(chosen(attempt, 301), 300u);
  EXPECT_EQ(chosen(attempt, 300), 200u);
  EXPECT_EQ(chosen(attempt, 101), 100u);
  EXPECT_EQ(chosen(attempt + 1, 1), 300u) << "of another attempt";
  const Choice none =
      choose_newest_verified(folder_, {{attempt, 1, "its sums are of different steps"}});
  EXPECT_FALSE(none.chosen);
  ASSERT_EQ(none.rejected.size(), 3u);
  EXPECT_EQ(none.rejected[0].problem, "its sums are of different steps");
}

TEST_F(ManifestTest, WhatIsDistrustedIsSetAsideAndWhatIsDamagedStays) {
  make_checkpoint(100);
  make_checkpoint(200);
  flip_bit(make_checkpoint(300) / "model.safetensors", 5);
  const std::vector<Distrust> distrusted{
      {read(folder_ / folder_name(200))->attempt, 150, "its sums are of different steps"}};
  Choice choice = choose_newest_verified(folder_, distrusted);
  set_aside(choice, distrusted);
  EXPECT_EQ(choice.chosen->step, 100u);
  EXPECT_FALSE(fs::exists(folder_ / folder_name(200)));
  EXPECT_TRUE(fs::exists(folder_ / (folder_name(200) + ".distrusted") / kManifestName));
  EXPECT_TRUE(fs::exists(folder_ / folder_name(300))) << "damaged: somebody may want to look";
  const auto all = list(folder_, true);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.back().step, 100u);
  fs::create_directories(folder_ / "notes.distrusted"); // this folder is not ours
  EXPECT_THAT(list_set_aside(folder_),
              ElementsAre(Pair(200u, folder_ / (folder_name(200) + ".distrusted"))));
  EXPECT_THAT(list_set_aside(folder_ / "absent"), ElementsAre());
}

TEST_F(ManifestTest, NothingChosenWhereNothingVerifies) {
  EXPECT_FALSE(choose_newest_verified(folder_).chosen);
  EXPECT_FALSE(choose_newest_verified(folder_ / "absent").chosen);
  fs::resize_file(make_checkpoint(1) / "model.safetensors", 0);
  EXPECT_FALSE(choose_newest_verified(folder_).chosen);
}

TEST_F(ManifestTest, ListIsNewestFirstAndGoesOnAfterABadOne) {
  make_checkpoint(1);
  flip_bit(make_checkpoint(2) / "model.safetensors", 5);
  make_checkpoint(3);
  const auto all = list(folder_, true);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].step, 3u);
  EXPECT_TRUE(all[0].problem.empty());
  EXPECT_FALSE(all[1].problem.empty());
  EXPECT_TRUE(all[2].problem.empty());
  EXPECT_TRUE(list(folder_, false)[1].problem.empty()) << "unverified: the manifest alone is sound";
}

TEST(Retention, KeepsTheLastAndTheMultiples) {
  std::vector<Kept> present;
  for (uint64_t s = 10; s <= 100; s += 10)
    present.push_back({s, true, true});
  EXPECT_THAT(steps_to_delete(present, 3, 50), ElementsAre(70, 60, 40, 30, 20, 10));
  EXPECT_THAT(steps_to_delete(present, 100, 0), ElementsAre());
}

TEST(Retention, OnlyVerifiedOnesAreCounted) {
  const std::vector<Kept> present{
      {50, true, true}, {10, true, true}, {40, false, true}, {30, true, false}, {20, true, true}};
  EXPECT_EQ(oldest_of_the_last(present, 1), 50u);
  EXPECT_EQ(oldest_of_the_last(present, 3), 20u);
  EXPECT_EQ(oldest_of_the_last(present, 5), 0u) << "four are good";
  EXPECT_EQ(oldest_of_the_last(present, 0), 50u);
  EXPECT_EQ(oldest_of_the_last({}, 1), 0u);
}

TEST(Retention, NeverDeletesTheOnlyGoodOne) {
  // Newer checkpoints are damaged or diverged, so the good one stays whatever its age.
  EXPECT_THAT(steps_to_delete({{10, true, true}, {20, false, true}, {30, false, true}}, 1, 0),
              ElementsAre());
  EXPECT_THAT(steps_to_delete({{10, true, true}, {20, true, false}, {30, true, false}}, 1, 0),
              ElementsAre(20));
  EXPECT_THAT(steps_to_delete({{10, true, true}}, 0, 0), ElementsAre());
  EXPECT_THAT(steps_to_delete({{10, false, false}}, -1, 0), ElementsAre());
}

TEST(Retention, DamagedOnesDoNotPushGoodOnesOut) {
  EXPECT_THAT(steps_to_delete({{10, true, true},
                               {20, true, true},
                               {30, true, true},
                               {40, false, true},
                               {50, true, true}},
                              3, 0),
              ElementsAre(10));
  EXPECT_THAT(steps_to_delete({{10, false, true}, {20, true, true}, {30, true, true}}, 2, 0),
              ElementsAre(10));
}

// Once, nsad looked for the newest checkpoint at every start, and such a manifest ended it every
// time.
TEST_F(ManifestTest, AManifestWrittenToHarmCostsItsCheckpointOnly) {
  make_checkpoint(100);
  const auto poison = [&](uint64_t step, const std::string& text) {
    const fs::path at = folder_ / folder_name(step);
    fs::create_directories(at);
    ASSERT_TRUE(write_file_atomic(at / kManifestName, text));
  };
  poison(200, "{\"format\":1,\"manifest_checksum\":\"\",\"files\":" + std::string(200000, '[') +
                  std::string(200000, ']') + "}");
  poison(300, std::string(size_t{5} << 20, ' ') + "{}");
  poison(400, "{\"format\":1,");
  poison(500, "{\"format\":[]}");
  fs::create_directories(folder_ / folder_name(600) / kManifestName);
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  fs::create_directories(folder_ / folder_name(700));
  fs::rename(folder_ / "fifo", folder_ / folder_name(700) / kManifestName);
  const Choice choice = choose_newest_verified(folder_);
  ASSERT_TRUE(choice.chosen);
  EXPECT_EQ(choice.chosen->step, 100u);
  ASSERT_EQ(choice.rejected.size(), 6u);
  for (const Found& found : choice.rejected)
    EXPECT_THAT(found.problem, HasSubstr(folder_name(found.step) + "/manifest.json")) << found.step;
  EXPECT_THAT(choice.rejected[5].problem, HasSubstr("column 107: nested deeper than 64 levels"));
}

TEST_F(ManifestTest, ASharedCheckpointOutlivesTheFirstOne) {
  const fs::path from = make_checkpoint(10);
  ASSERT_TRUE(write_file_atomic(from / "optimizer.safetensors", "moments"));
  auto manifest = read(from);
  ASSERT_TRUE(manifest);
  manifest->files.push_back({"optimizer.safetensors", 7, checksum_hex("moments")});
  ASSERT_TRUE(write_file_atomic(from / kManifestName, to_json(*manifest).dump()));
  const fs::path whole = folder_ / "whole", weights = folder_ / "weights";
  ASSERT_TRUE(link_checkpoint(from, whole, true));
  ASSERT_TRUE(link_checkpoint(from, weights, false));
  EXPECT_EQ(fs::hard_link_count(from / "model.safetensors"), 3u) << "no byte is copied";
  fs::remove_all(from);
  EXPECT_TRUE(verify(whole, *read(whole)));
  EXPECT_TRUE(verify(weights, weights_alone(*read(weights))));
  EXPECT_FALSE(fs::exists(weights / "optimizer.safetensors"));
  EXPECT_FALSE(verify(weights, *read(weights)));
}

// The file system has no hard links. The copies are on disk before the folder gets its name.
TEST_F(ManifestTest, ACopiedCheckpointIsOnDisk) {
  const fs::path from = make_checkpoint(10), to = folder_ / "to";
  disk().links_fail = true;
  disk().synced.clear();
  const Status linked = link_checkpoint(from, to, true);
  const std::vector<std::string> synced = disk().synced;
  disk() = {};
  ASSERT_TRUE(linked) << linked.error().what;
  EXPECT_EQ(fs::hard_link_count(to / "model.safetensors"), 1u) << "a copy was asked for";
  const std::string unfinished = to.string() + ".tmp/";
  for (const char* name : {"model.safetensors", "manifest.json"})
    EXPECT_THAT(synced, testing::Contains(unfinished + name));
}

TEST_F(ManifestTest, ADamagedCheckpointIsNotShared) {
  const fs::path from = make_checkpoint(10), to = folder_ / "to";
  ASSERT_TRUE(write_file_atomic(from / "model.safetensors", "torn"));
  const Status linked = link_checkpoint(from, to, false);
  ASSERT_FALSE(linked);
  EXPECT_THAT(linked.error().what, HasSubstr("model.safetensors"));
  EXPECT_FALSE(fs::exists(to));
  EXPECT_FALSE(fs::exists(to.string() + ".tmp"));
  EXPECT_EQ(link_checkpoint(folder_ / "nothing", to, false).error().code, ErrorCode::kNotFound);
  // What a killed nsad left behind does no harm.
  fs::create_directories(to.string() + ".tmp");
  EXPECT_TRUE(link_checkpoint(make_checkpoint(20), to, false));
}

} // namespace
} // namespace nsa::manifest
