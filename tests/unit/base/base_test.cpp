#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/pass_descriptors.h"
#include "common/base/text.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <random>
#include <sys/socket.h>
#include <sys/stat.h>

namespace nsa {
namespace {

TEST(Checksum, MatchesPublishedValueAndDoesNotDependOnPieces) {
  // XXH3-128 of the empty input, from the xxHash specification's sanity table.
  EXPECT_EQ(checksum_hex(""), "99aa06d3014798d86001c324468d497f");
  std::string data(100'000, 'x');
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<char>(i * 7);
  ChecksumStream stream;
  for (size_t at = 0; at < data.size(); at += 977)
    stream.update(data.data() + at, std::min<size_t>(977, data.size() - at));
  EXPECT_EQ(stream.hex(), checksum_hex(data));
  data[5] = static_cast<char>(data[5] ^ 1);
  EXPECT_NE(stream.hex(), checksum_hex(data));
}

TEST(File, AtomicWriteReplacesWholeContentAndLeavesNothingBehind) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "nsa_base_file";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(make_folder(folder / "a" / "b"));
  ASSERT_TRUE(write_file_atomic(folder / "f", "one"));
  ASSERT_TRUE(write_file_atomic(folder / "f", "two"));
  EXPECT_EQ(read_file(folder / "f").value(), "two");
  size_t names = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder))
    ++names;
  EXPECT_EQ(names, 2u);
  const auto missing = write_file_atomic(folder / "nowhere" / "f", "x");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(folder).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_file(folder / "f", 2).error().code, ErrorCode::kExhausted);
}

TEST(Text, NearestNameFindsTyposAndRefusesStrangers) {
  const std::vector<std::string> names = {"seq_len", "micro_batch", "accumulate", "lr"};
  EXPECT_EQ(nearest_name("seqlen", names), "seq_len");
  EXPECT_EQ(nearest_name("accumualte", names), "accumulate");
  EXPECT_EQ(nearest_name("zzzzzz", names), std::nullopt);
  EXPECT_EQ(nearest_name("qx", names), std::nullopt);
}

TEST(Text, UnitsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes((uint64_t{1} << 30) * 14), "14.0 GiB");
  EXPECT_EQ(format_duration(0.85), "850ms");
  EXPECT_EQ(format_duration(61), "1m01s");
  EXPECT_EQ(format_duration(90000), "1d01h");
  EXPECT_EQ(format_count(116.5e6), "116.5M");
  EXPECT_EQ(format_count(999), "999");
}

TEST(Clock, Rfc3339IsUtcWithMilliseconds) {
  EXPECT_EQ(format_rfc3339(WallTime{1'000'000'000'123'000'000}), "2001-09-09T01:46:40.123Z");
}

TEST(Ids, MadeIdsAreValidAndStartWithALetter) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i)
    EXPECT_TRUE(is_run_id(make_run_id(random)));
  EXPECT_FALSE(is_run_id("2abcd"));
  EXPECT_FALSE(is_run_id("abcd"));
  EXPECT_FALSE(is_run_id("ab/cd"));
}

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool is_same_file(int a, int b) {
  struct stat one{}, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_ino == other.st_ino &&
         one.st_dev == other.st_dev;
}

TEST(PassDescriptors, ComeInOrderWithTheirBytes) {
  const auto [here, there] = socket_pair();
  const auto [first, second] = socket_pair();
  const int sent[] = {first.get(), second.get()};
  ASSERT_EQ(send_with_descriptors(here.get(), "pages", sent), 5);
  ASSERT_EQ(send_with_descriptors(here.get(), "more", {}), 4);
  char bytes[16];
  const ReceivedBytes got = receive_with_descriptors(there.get(), bytes, 8);
  ASSERT_EQ(got.count, 5); // what comes behind is another message
  EXPECT_EQ(std::string_view(bytes, 5), "pages");
  ASSERT_EQ(got.descriptors.size(), 2U);
  EXPECT_FALSE(got.dropped);
  EXPECT_TRUE(is_same_file(got.descriptors[0].get(), first.get()));
  EXPECT_TRUE(is_same_file(got.descriptors[1].get(), second.get()));
  EXPECT_NE(::fcntl(got.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  const ReceivedBytes plain = receive_with_descriptors(there.get(), bytes, 8);
  EXPECT_EQ(plain.count, 4);
  EXPECT_TRUE(plain.descriptors.empty());
}

TEST(PassDescriptors, MoreThanWantedAreDroppedAndSaid) {
  const auto [here, there] = socket_pair();
  const auto [first, second] = socket_pair();
  const int sent[] = {first.get(), second.get()};
  ASSERT_EQ(send_with_descriptors(here.get(), "x", sent), 1);
  char byte;
  const ReceivedBytes got = receive_with_descriptors(there.get(), {&byte, 1}, 1);
  EXPECT_EQ(got.count, 1);
  EXPECT_EQ(got.descriptors.size(), 1U);
  EXPECT_TRUE(got.dropped);
}

TEST(PassDescriptors, AClosedOtherEndIsAnErrnoAndNoSignal) {
  auto [here, there] = socket_pair();
  there.reset();
  EXPECT_EQ(send_with_descriptors(here.get(), "x", {}), -1);
  EXPECT_EQ(errno, EPIPE);
  char byte;
  EXPECT_EQ(receive_with_descriptors(here.get(), {&byte, 1}, 1).count, 0);
  EXPECT_EQ(receive_with_descriptors(here.get(), {&byte, 1}, 1, MSG_DONTWAIT).count, 0);
}

} // namespace
} // namespace nsa
