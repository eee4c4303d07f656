#include "worker/telemetry/tensorboard.h"

#include "tests/support/temporary_folder.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <map>
#include <optional>
#include <sys/resource.h>

namespace nsa::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A reader written from the descriptions of the formats. It shares only crc32c() with the writer.
uint64_t take_little_endian(std::string_view& bytes, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), size);
  bytes.remove_prefix(size);
  return value;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xA282EAD8u;
  return rotated >> 17 | rotated << 15;
}

// Returns all complete records. A record that is cut off ends the list, and a wrong checksum fails
// the test.
std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (file.size() >= 12) {
    const std::string_view length_bytes = file.substr(0, 8);
    const uint64_t length = take_little_endian(file, 8);
    EXPECT_EQ(unmask(static_cast<uint32_t>(take_little_endian(file, 4))), crc32c(length_bytes));
    if (file.size() < length + 4) break;
    records.emplace_back(file.substr(0, length));
    file.remove_prefix(length);
    EXPECT_EQ(unmask(static_cast<uint32_t>(take_little_endian(file, 4))), crc32c(records.back()));
  }
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a protobuf message by number, with the raw bytes of each.
std::multimap<int, std::string> fields_of(std::string_view message) {
  std::multimap<int, std::string> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    const int number = static_cast<int>(key >> 3);
    size_t size = 0;
    if ((key & 7) == 0) {
      fields.emplace(number, std::to_string(take_varint(message)));
      continue;
    }
    size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : take_varint(message);
    fields.emplace(number, message.substr(0, size));
    message.remove_prefix(size);
  }
  return fields;
}

std::string only(const std::multimap<int, std::string>& fields, int number) {
  EXPECT_EQ(fields.count(number), 1u) << "field " << number;
  return fields.count(number) ? fields.find(number)->second : "";
}

template <class T> T as(const std::string& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
  std::string file_version;
  bool session_start = false;
};

ReadEvent event_of(std::string_view record) {
  const auto fields = fields_of(record);
  ReadEvent event;
  event.wall_time = as<double>(only(fields, 1));
  if (fields.count(2)) event.step = std::stoll(only(fields, 2));
  if (fields.count(3)) event.file_version = only(fields, 3);
  if (fields.count(7)) event.session_start = only(fields_of(only(fields, 7)), 1) == "1";
  if (!fields.count(5)) return event;
  const auto values = fields_of(only(fields, 5));
  for (auto [at, end] = values.equal_range(1); at != end; ++at) {
    const auto value = fields_of(at->second);
    if (value.count(2))
      event.scalars[only(value, 1)] = as<float>(only(value, 2));
    else {
      const auto tensor = fields_of(only(value, 8));
      EXPECT_EQ(only(tensor, 1), "7");
      EXPECT_EQ(only(fields_of(only(fields_of(only(value, 9)), 1)), 1), "text");
      event.texts[only(value, 1)] = only(tensor, 8);
    }
  }
  return event;
}

std::vector<ReadEvent> events_of(const std::filesystem::path& path) {
  std::vector<ReadEvent> events;
  for (const std::string& record : records_of(test::slurp(path)))
    events.push_back(event_of(record));
  return events;
}

wire::RankStep some_step(uint64_t number) {
  wire::RankStep step;
  step.step = number;
  step.tokens = number * 1024;
  step.loss = 4.0 / static_cast<double>(number);
  step.gradient_norm = 0.5;
  step.learning_rate = 1e-4;
  step.tokens_per_second = 39000;
  step.phase_seconds = {{"forward", 0.1}, {"backward", 0.2}};
  step.resident_bytes = uint64_t{3} << 30;
  return step;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu); // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0u);
}

// These bytes were checked with `protoc --decode_raw` and TensorBoard's reader (tests/oracle).
TEST(EventRecord, BytesOfAScalarEvent) {
  EXPECT_EQ(encode_scalars(1.0, 300, {{"a", 2.0}}), std::string("\x09\0\0\0\0\0\0\xF0\x3F"
                                                                "\x10\xAC\x02"
                                                                "\x2A\x0A"
                                                                "\x0A\x08"
                                                                "\x0A\x01"
                                                                "a"
                                                                "\x15\0\0\0\x40",
                                                                24));
}

TEST(TensorBoardWriter, StepsAndEvaluationsComeBack) {
  const test::TemporaryFolder folder;
  TensorBoardWriter writer(folder.path() / "tb", 2, 41);
  writer.text("run/file", "steps = 10\n# *loud*", 41);
  writer.step(some_step(41));
  wire::RankEvaluation evaluation;
  evaluation.step = 41;
  evaluation.loss = 2.25;
  writer.evaluation(evaluation);
  writer.non_finite({0, 42, wire::NonFiniteAction::kSkip, "loss"});

  EXPECT_THAT(writer.path().filename().string(), StartsWith("events.out.tfevents."));
  EXPECT_THAT(writer.path().filename().string(), ::testing::EndsWith(".2"));
  const auto events = events_of(writer.path());
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].session_start);
  EXPECT_EQ(events[1].step, 41);
  EXPECT_EQ(events[2].texts.at("run/file"), "    steps = 10\n    # *loud*");
  EXPECT_EQ(events[3].step, 41);
  EXPECT_FLOAT_EQ(events[3].scalars.at("train/loss"), 4.0f / 41);
  EXPECT_FLOAT_EQ(events[3].scalars.at("time/backward_seconds"), 0.2f);
  EXPECT_FLOAT_EQ(events[3].scalars.at("memory/resident_gib"), 3.0f);
  // A CPU does not have this figure.
  EXPECT_FALSE(events[3].scalars.contains("memory/allocated_gib"));
  EXPECT_NEAR(events[3].wall_time, static_cast<double>(::time(nullptr)), 60);
  EXPECT_FLOAT_EQ(events[4].scalars.at("eval/heldout_loss"), 2.25f);
  EXPECT_THAT(events[5].texts.at("train/non_finite"), HasSubstr("loss is not finite: skip"));
}

TEST(TensorBoardWriter, EveryFigureOfALayerHasItsCurve) {
  wire::RankStep step;
  for (const auto& row : wire::kLayerMetrics)
    step.*row.at = {{"3", 0.25}};
  std::map<std::string, double> curves;
  for (const auto& [tag, value] : step_scalars(step))
    curves[tag] = value;
  EXPECT_EQ(curves.at("gradient_norm/3"), 0.25);
  for (const auto& row : wire::kLayerMetrics)
    EXPECT_EQ(curves.at(std::string(row.layers.tensorboard) + "/3"), 0.25) << row.name;
}

TEST(TensorBoardWriter, ATornTailHidesNothingBeforeIt) {
  const test::TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 1, 0);
  for (uint64_t step = 1; step <= 5; ++step)
    writer.step(some_step(step));
  const std::string whole = test::slurp(writer.path());
  const size_t last = frame_record(encode_scalars(0, 5, step_scalars(some_step(5)))).size();
  for (size_t cut = 1; cut <= last; ++cut)
    EXPECT_EQ(records_of(std::string_view(whole).substr(0, whole.size() - cut)).size(), 6u);
}

// Simulates a full disk by a limit on the size of files.
class FullAt {
public:
  explicit FullAt(uint64_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit tight{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  }
  ~FullAt() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, old_handler_);
  }

private:
  rlimit before_{};
  void (*old_handler_)(int) = nullptr;
};

TEST(TensorBoardWriter, AFullDiskDelaysTheCurves) {
  const test::TemporaryFolder folder;
  TensorBoardWriter writer(folder.path(), 1, 0);
  writer.step(some_step(1));
  {
    const FullAt full(std::filesystem::file_size(writer.path()) + 30);
    writer.step(some_step(2));
    EXPECT_TRUE(writer.file().waits());
  }
  writer.step(some_step(3));
  EXPECT_FALSE(writer.file().waits());
  EXPECT_EQ(events_of(writer.path()).size(), 5u);
}

TEST(TensorBoardWriter, AFullDiskAtTheStartDelaysTheCurves) {
  const test::TemporaryFolder folder;
  std::optional<TensorBoardWriter> writer;
  {
    const FullAt full(10); // in the middle of the first record
    writer.emplace(folder.path(), 1, 1);
    writer->step(some_step(1));
    EXPECT_TRUE(writer->file().waits());
  }
  writer->flush();
  EXPECT_FALSE(writer->file().waits());
  EXPECT_EQ(events_of(writer->path()).size(), 3u);
}

TEST(TensorBoardWriter, AFolderThatCannotBeMadeDelaysTheCurves) {
  const test::TemporaryFolder folder;
  const std::filesystem::path in_the_way = folder.write("tensorboard", "");
  TensorBoardWriter writer(in_the_way, 1, 1);
  writer.step(some_step(1));
  EXPECT_TRUE(writer.file().waits());
  std::filesystem::remove(in_the_way);
  writer.step(some_step(2));
  EXPECT_EQ(events_of(writer.path()).size(), 4u);
}

TEST(RecordFile, LosesNewRecordsOnlyBeyondItsMemory) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("records", "");
  RecordFile file([&] { return UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)); },
                  "records");
  const std::string record(size_t{1} << 20, 'a');
  file.append("first\n");
  {
    const FullAt full(8);
    for (int i = 0; i < 6; ++i)
      file.append(record);
  }
  EXPECT_EQ(file.lost(), 2u); // the file contains two bytes of the first record
  file.append("last\n");
  const std::string text = test::slurp(path);
  EXPECT_EQ(text.size(), 6 + 4 * record.size() + 5);
  EXPECT_TRUE(text.starts_with("first\na") && text.ends_with("alast\n"));
}

} // namespace
} // namespace nsa::telemetry
