#include "common/base/json.h"
#include "daemon/api/log_reader.h"

#include "common/base/text.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::api {
namespace {

class LogReader : public ::testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/nsa-logs-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(int rank) const { return folder_ + "/rank-" + std::to_string(rank) + ".log"; }
  LogSource source(int rank) const { return {1, rank, path(rank), true}; }
  void append(const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::app) << text;
  }
  // A line with the time 09:00:<second>; `text` identifies it.
  static std::string line(int second, const std::string& text) {
    char time[64];
    std::snprintf(time, sizeof time, "2026-01-31T09:00:%02d.000000000Z stdout F ", second);
    return time + text + "\n";
  }
  void rotate(int rank, int kept) {
    for (int i = kept; i >= 1; --i)
      std::rename((path(rank) + "." + std::to_string(i)).c_str(),
                  (path(rank) + "." + std::to_string(i + 1)).c_str());
    std::rename(path(rank).c_str(), (path(rank) + ".1").c_str());
  }
  static std::string drain(LogMerge& merge) {
    std::string texts;
    while (const auto line = merge.next())
      texts += line->text + " ";
    return texts;
  }

  std::string folder_;
};

TEST_F(LogReader, ParsesCriLines) {
  const auto line = parse_cri("2026-01-31T09:12:01.123456789Z stderr P a  b ");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->time, "2026-01-31T09:12:01.123456789Z");
  EXPECT_EQ(line->stream, wire::LogStream::kStderr);
  EXPECT_EQ(line->text, "a  b ");
  EXPECT_TRUE(line->partial);
  for (const char* bad : {"", "x", "plain text of a rank", "2026-01-31T09:12:01Z stdin F x",
                          "2026-01-31T09:12:01Z stdout X x", "yesterday-at-noon-timeZ stdout F x"})
    EXPECT_FALSE(parse_cri(bad)) << bad;
}

TEST_F(LogReader, MergesRanksByTime) {
  append(path(0), line(1, "a") + line(3, "c") + line(5, "e"));
  append(path(1), line(2, "b") + line(3, "C") + line(4, "d"));
  LogMerge merge;
  merge.add({source(0), source(1)}, {});
  EXPECT_EQ(drain(merge), "a b c C d e ");
}

TEST_F(LogReader, JoinsPartialLinesAndKeepsForeignOnes) {
  append(path(0), "2026-01-31T09:00:00Z stdout P one \n2026-01-31T09:00:01Z stdout F line\n"
                  "not in the format\n");
  LogMerge merge;
  merge.add({source(0)}, {});
  const auto first = merge.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->text, "one line");
  EXPECT_EQ(first->time, "2026-01-31T09:00:00Z");
  EXPECT_EQ(merge.next()->text, "not in the format");
}

TEST_F(LogReader, ReadsRotatedFilesOldestFirst) {
  append(path(0) + ".2", line(1, "a"));
  append(path(0) + ".1", line(2, "b"));
  append(path(0), line(3, "c"));
  LogMerge merge;
  merge.add({source(0)}, {});
  EXPECT_EQ(drain(merge), "a b c ");
}

TEST_F(LogReader, TailCountsBackOverRotatedFiles) {
  append(path(0) + ".2", line(1, "a") + line(2, "b"));
  append(path(0) + ".1", line(3, "c") + line(4, "d"));
  append(path(0), line(5, "e"));
  const auto tail = [&](int64_t lines) {
    LogMerge merge;
    merge.add({source(0)}, {lines, {}});
    return drain(merge);
  };
  EXPECT_EQ(tail(0), "");
  EXPECT_EQ(tail(1), "e ");
  EXPECT_EQ(tail(2), "d e ");
  EXPECT_EQ(tail(3), "c d e ");
  EXPECT_EQ(tail(4), "b c d e ");
  EXPECT_EQ(tail(5), "a b c d e ");
  EXPECT_EQ(tail(50), "a b c d e ");
}

TEST_F(LogReader, TailFindsLinesAcrossBlocks) {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += line(i % 60, "line" + std::to_string(i) + std::string(50, '.'));
  append(path(0), text);
  RankLogReader reader(source(0), {2000, {}});
  int lines = 0;
  while (reader.peek()) {
    const auto line = reader.take();
    EXPECT_EQ(line.text.substr(0, 8), "line" + std::to_string(1000 + lines));
    ++lines;
  }
  EXPECT_EQ(lines, 2000);
}

TEST_F(LogReader, FollowsGrowthAndRotationWithoutLosingALine) {
  append(path(0), line(1, "a"));
  LogMerge merge;
  merge.add({source(0)}, {});
  EXPECT_EQ(drain(merge), "a ");
  append(path(0), line(2, "b") + "2026-01-31T09:00:03Z stdout F half");
  EXPECT_EQ(drain(merge), "b ");
  append(path(0), "-c\n" + line(4, "d"));
  rotate(0, 0);
  append(path(0), line(5, "e"));
  rotate(0, 1); // two rotations between two reads
  append(path(0), line(6, "f"));
  EXPECT_EQ(drain(merge), "half-c d e f ");
  append(path(0), line(7, "g"));
  EXPECT_EQ(drain(merge), "g ");
}

TEST_F(LogReader, GoesOnWithWhatIsKeptWhenItsFileWasDeleted) {
  append(path(0), line(1, "a"));
  LogMerge merge;
  merge.add({source(0)}, {});
  EXPECT_EQ(drain(merge), "a ");
  rotate(0, 0);
  append(path(0) + "", line(3, "c"));
  std::filesystem::remove(path(0) + ".1");
  EXPECT_EQ(drain(merge), "c ");
}

TEST_F(LogReader, APositionIsTextAndBack) {
  const LogPosition position{2, 7, 0x5f3a2, 0x9c01be44, 0x1a2b3};
  EXPECT_EQ(position.text(), "2.7.5f3a2.9c01be44.1a2b3");
  EXPECT_EQ(LogPosition::parse(position.text())->text(), position.text());
  for (const char* bad : {"", "1", "1.2.3.4", "1.2.3.4.", "1.2.3.4.5.", "1.2.3.4.5 ", "-1.2.3.4.5",
                          "1.2.x.4.5", "1.2.3.4.-5", "1.2.3.123456789.5"})
    EXPECT_FALSE(LogPosition::parse(bad)) << bad;
}

// Lines that were written together have the same time. Only their position in the file
// distinguishes them.
TEST_F(LogReader, GoesOnBehindAnyLineThroughRotation) {
  append(path(0), line(1, "a") + line(1, "b"));
  rotate(0, 0);
  append(path(0), line(1, "c") + "2026-01-31T09:00:01Z stdout P d\n" + line(1, "-d"));
  const std::vector<std::string> texts = {"a", "b", "c", "d-d"};
  std::vector<std::string> positions;
  LogMerge merge;
  merge.add({source(0)}, {});
  positions.push_back(merge.positions().at(0).position); // before the first line
  while (const auto line = merge.next()) {
    EXPECT_EQ(merge.positions().at(0).position, line->position);
    positions.push_back(line->position);
  }
  ASSERT_EQ(positions.size(), texts.size() + 1);
  rotate(0, 1); // a rotation while the reader is not connected
  append(path(0), line(2, "e"));
  for (size_t i = 0; i < positions.size(); ++i) {
    std::string expected;
    for (size_t k = i; k < texts.size(); ++k)
      expected += texts[k] + " ";
    LogMerge again;
    again.add({source(0)}, {std::nullopt, {*LogPosition::parse(positions[i])}});
    EXPECT_EQ(again.positions().at(0).text, "") << i;
    EXPECT_EQ(drain(again), expected + "e ") << i;
  }
}

TEST_F(LogReader, APositionInADeletedFileIsToldAndAUsedInodeDoesNotDeceive) {
  append(path(0), line(1, "a") + line(2, "b"));
  LogMerge merge;
  merge.add({source(0)}, {});
  auto position = *LogPosition::parse(merge.next()->position);
  std::filesystem::remove(path(0));
  append(path(0), line(7, "c") + line(8, "d"));
  struct stat info{};
  ASSERT_EQ(::stat(path(0).c_str(), &info), 0);
  position.inode = info.st_ino; // a file system may use an inode's number again
  LogMerge again;
  again.add({source(0)}, {std::nullopt, {position}});
  EXPECT_NE(again.positions().at(0).text.find("rotated away"), std::string::npos);
  EXPECT_EQ(drain(again), "c d ");
}

TEST_F(LogReader, APositionBeforeTheFileWasThereIsItsBeginning) {
  LogMerge merge;
  merge.add({source(0)}, {});
  const auto position = *LogPosition::parse(merge.positions().at(0).position);
  append(path(0), line(1, "a"));
  LogMerge again;
  again.add({source(0)}, {5, {position}});
  EXPECT_EQ(again.positions().at(0).text, "");
  EXPECT_EQ(drain(again), "a ");
}

TEST_F(LogReader, ANewAttemptJoinsAndAMissingFileIsWaitedFor) {
  LogMerge merge;
  merge.add({source(0)}, {});
  EXPECT_EQ(drain(merge), "");
  append(path(0), line(1, "a"));
  EXPECT_EQ(drain(merge), "a ");
  append(folder_ + "/second.log", line(2, "b"));
  merge.add({source(0), {2, 0, folder_ + "/second.log", true}}, {});
  EXPECT_EQ(drain(merge), "b ");
}

TEST_F(LogReader, FollowsNoLinkAndWaitsOnNoPipe) {
  append(folder_ + "/secret", line(1, "secret"));
  ASSERT_EQ(::symlink((folder_ + "/secret").c_str(), path(0).c_str()), 0);
  ASSERT_EQ(::mkfifo(path(1).c_str(), 0600), 0);
  LogMerge merge;
  merge.add({source(0), source(1)}, {});
  EXPECT_EQ(drain(merge), "");
}

// ---- pieces
// -------------------------------------------------------------------------------------

// Returns all pieces until the end, and the size of the largest one.
std::pair<std::string, size_t> all_pieces(LogPieces& pieces) {
  std::string text;
  size_t largest = 0;
  while (true) {
    const LogPieces::Piece piece = pieces.next();
    largest = std::max(largest, piece.lines.size());
    for (const std::string& line : split(piece.lines, '\n'))
      if (!line.empty()) {
        const auto json = nlohmann::json::parse(line);
        text += json["stream"] == "position" ? "@" : json["text"].get<std::string>();
        text += ' ';
      }
    if (piece.at_end) return {text, largest};
  }
}

TEST_F(LogReader, TheLastLinesOfSeveralRanksAreTheLastOfAllTogether) {
  append(path(0), line(1, "0a") + line(3, "0b") + line(5, "0c"));
  append(path(1), line(2, "1a") + line(4, "1b"));
  const auto tail = [&](int64_t lines, const std::string& since = "") {
    LogPieces pieces({source(0), source(1)}, {{lines, {}}, since, true});
    return all_pieces(pieces).first;
  };
  EXPECT_EQ(tail(0), "@ @ ");
  EXPECT_EQ(tail(2), "@ @ 1b 0c ");
  EXPECT_EQ(tail(4), "@ @ 1a 0b 1b 0c ");
  EXPECT_EQ(tail(9), "@ @ 0a 1a 0b 1b 0c ");
  EXPECT_EQ(tail(9, "2026-01-31T09:00:03Z"), "@ @ 0b 1b 0c ");
  EXPECT_EQ(tail(1, "2026-01-31T09:00:03Z"), "@ @ 0c ");
}

TEST_F(LogReader, PositionsBeforeTheTailGoOnWithIt) {
  append(path(0), line(1, "0a") + line(3, "0b") + line(5, "0c"));
  append(path(1), line(2, "1a") + line(4, "1b"));
  LogPieces pieces({source(0), source(1)}, {{2, {}}, "", true});
  LogStart again;
  for (const std::string& line : split(pieces.next().lines, '\n'))
    if (const auto json = nlohmann::json::parse(line, nullptr, false);
        json.is_object() && json["stream"] == "position")
      again.from.push_back(*LogPosition::parse(json["position"].get<std::string>()));
  ASSERT_EQ(again.from.size(), 2u);
  LogPieces second({source(0), source(1)}, {again, "", false});
  EXPECT_EQ(all_pieces(second).first, "1b 0c ");
}

TEST_F(LogReader, AMillionLinesAndAnEndlessOneComeInBoundedPieces) {
  std::string text;
  for (int i = 0; i < 200'000; ++i)
    text += line(i % 60, "x");
  append(path(0), text);
  append(path(1), text);
  LogPieces many({source(0), source(1)}, {{1'000'000, {}}, "", false});
  const auto [lines, largest] = all_pieces(many);
  EXPECT_EQ(lines.size(), 2 * 200'000 * 2u);
  EXPECT_LT(largest, size_t{1} << 20) << "more than a stream's queue holds";
  append(path(2), "");
  std::filesystem::resize_file(path(2), 8 << 20); // zeros without any newline
  LogPieces endless({source(2)}, {{2, {}}, "", false});
  const auto [zeros, one] = all_pieces(endless);
  EXPECT_EQ(std::count(zeros.begin(), zeros.end(), '\0'), 2 * (64 << 10)) << "two lines of 64 KiB";
  EXPECT_LT(one, size_t{1} << 20);
}

TEST_F(LogReader, ALaterAttemptJoinsThePieces) {
  append(path(0), line(1, "a"));
  LogPieces pieces({source(0)}, {{}, "", false});
  EXPECT_EQ(all_pieces(pieces).first, "a ");
  append(folder_ + "/second.log", line(2, "b"));
  pieces.add({{2, 0, folder_ + "/second.log", true, {}}});
  append(path(0), line(3, "c"));
  EXPECT_EQ(all_pieces(pieces).first, "c b ");
}

TEST_F(LogReader, FilesAreOpenedAsTheSourceSays) {
  append(path(0), line(1, "a"));
  LogSource refused = source(0);
  refused.open = [](const std::filesystem::path& p) -> Result<UniqueFd> {
    return fail(ErrorCode::kPermission, p.string());
  };
  LogPieces pieces({refused}, {{}, "", false});
  EXPECT_EQ(all_pieces(pieces).first, "");
}

} // namespace
} // namespace nsa::api
