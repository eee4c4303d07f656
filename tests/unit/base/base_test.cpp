#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/markdown.h"
#include "common/base/pass_descriptors.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "tests/support/temporary_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <random>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace nsa {
namespace {

TEST(Checksum, MatchesPublishedValueAndDoesNotDependOnPieces) {
  // XXH3-128 of the empty input, from the test vectors of the xxHash specification.
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
  const test::TemporaryFolder temporary_folder;
  const std::filesystem::path folder = temporary_folder.path();
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

// Other users may put any kind of file at a path that we read. None of these blocks us or fills
// memory.
TEST(File, OnlyARegularFileOfBoundedSizeIsRead) {
  const test::TemporaryFolder temporary_folder;
  const std::filesystem::path folder = temporary_folder.path();
  const auto refusal = [](const std::filesystem::path& path) {
    const auto read = read_file(path, 1 << 20);
    EXPECT_FALSE(read) << path;
    return read ? Error{} : read.error();
  };
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder / "fifo").what,
            (folder / "fifo").string() + " is a FIFO, not a regular file");
  EXPECT_EQ(refusal("/dev/zero").what, "/dev/zero is a device, not a regular file");
  EXPECT_EQ(refusal(folder).what, folder.string() + " is a folder, not a regular file");
  std::filesystem::create_symlink("/dev/zero", folder / "link");
  EXPECT_EQ(refusal(folder / "link").code, ErrorCode::kInvalidArgument);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (folder / "sock").string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(refusal(folder / "sock").code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(write_file_atomic(folder / "sparse", ""));
  std::filesystem::resize_file(folder / "sparse", uint64_t{1} << 40);
  EXPECT_EQ(refusal(folder / "sparse").code, ErrorCode::kExhausted);
}

TEST(File, AtomicWriteNeverOpensWhatWasPutInItsPlace) {
  const test::TemporaryFolder temporary_folder;
  const std::filesystem::path folder = temporary_folder.path();
  const std::string temporary = (folder / "f").string() + ".tmp-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(temporary.c_str(), 0600), 0); // opening it would wait for a reader
  ASSERT_TRUE(write_file_atomic(folder / "f", "one"));
  ASSERT_TRUE(write_file_atomic(folder / "other", "untouched"));
  std::filesystem::create_symlink(folder / "other", temporary);
  ASSERT_TRUE(write_file_atomic(folder / "f", "two"));
  EXPECT_EQ(read_file(folder / "f").value(), "two");
  EXPECT_EQ(read_file(folder / "other").value(), "untouched");
}

TEST(File, APipeThatAPersonNamesIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]), writer(ends[1]);
  ASSERT_TRUE(write_all(writer.get(), "schema = 1\n", 11));
  writer.reset();
  const std::string path = "/proc/self/fd/" + std::to_string(reader.get());
  EXPECT_EQ(read_file_or_pipe(path, 1 << 10).value(), "schema = 1\n");
  EXPECT_EQ(read_file_or_pipe("/dev/zero", 1 << 10).error().code, ErrorCode::kExhausted);
}

TEST(Text, NearestNameFindsTyposAndRefusesStrangers) {
  const std::vector<std::string> names = {"seq_len", "micro_batch", "accumulate", "lr"};
  EXPECT_EQ(nearest_name("seqlen", names), "seq_len");
  EXPECT_EQ(nearest_name("accumualte", names), "accumulate");
  EXPECT_EQ(nearest_name("zzzzzz", names), std::nullopt);
  EXPECT_EQ(nearest_name("qx", names), std::nullopt);
  // Half of a short word may differ if the first letter is right.
  EXPECT_EQ(nearest_name("nas", {"nsa"}), "nsa");
  EXPECT_EQ(nearest_name("list", {"ls"}), "ls");
  EXPECT_EQ(nearest_name("runs", {"prune"}), std::nullopt);
  EXPECT_EQ(nearest_name("me", {"set"}), std::nullopt);
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

TEST(Markdown, BreaksParagraphsAndListsAndNothingElse) {
  EXPECT_EQ(wrap_markdown("one two three\n\n- four five six\n", 8),
            "one two\nthree\n\n- four\n  five\n  six\n");
  const std::string fixed = "# a long heading\n| a | wide | table |\n```\nlong code line\n```\n";
  EXPECT_EQ(wrap_markdown(fixed, 8), fixed);
  EXPECT_EQ(wrap_markdown("×××× ×××\nunbreakable", 8), "×××× ×××\nunbreakable");
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
  ASSERT_EQ(got.count, 5); // the rest is another message
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

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("plain, \xc3\xa4 and\ttabs \xe6\xbc\xa2 \xf0\x9f\x98\x80"),
            "plain, \xc3\xa4 and\ttabs \xe6\xbc\xa2 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\x1b[2J\x07\r\x7f"), "\\x1b[2J\\x07\\x0d\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m")
      << "C1";
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m")
      << "C1 as a byte, which is no UTF-8";
  EXPECT_EQ(printable("\xe2\x80\xae\xe2\x81\xa6\xd8\x9c\xe2\x80\xa8"),
            "\\u202e\\u2066\\u061c\\u2028");
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable("a\nb", LineBreaks::kKeep), "a\nb");
}

TEST(Printable, IllFormedCharactersAreBytes) {
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80") << "cut off";
  EXPECT_EQ(printable("\xe2\x41"), "\\xe2"
                                   "A");
}

TEST(Printable, JsonKeepsItsMeaning) {
  EXPECT_EQ(printable_json("{\"a\":\"\\u001b\xc2\x9b\x7f\xe2\x80\xae\"}"),
            "{\"a\":\"\\u001b\\u009b\\u007f\\u202e\"}");
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
