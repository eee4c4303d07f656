// safetensors files: the bytes of the published format, round trips, and files made to deceive.
#include "common/safetensors/safetensors.h"

#include "common/base/checksum.h"
#include "common/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

namespace nsa::safetensors {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "nsa-safetensors-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "t.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Opens a file with this header text and `data` bytes after it.
  Result<Reader> open_crafted(const std::string& header, size_t data) {
    const uint64_t length = header.size();
    std::string text(reinterpret_cast<const char*>(&length), 8);
    text += header + std::string(data, 'd');
    EXPECT_TRUE(write_file_atomic(path_, text));
    return Reader::open(path_);
  }

  fs::path folder_, path_;
};

template <class T> std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST_F(SafetensorsTest, RoundTripsTensorsAndMetadata) {
  const std::vector<float> weights = {1.5f, -2.25f, 3e-38f, 4, 5, 6};
  const std::vector<uint16_t> half = {0x3f80, 0x4000};
  const std::vector<float> none;
  auto written = write(path_,
                       {{"w", DataType::kF32, {2, 3}, bytes_of(weights)},
                        {"h", DataType::kBF16, {2}, bytes_of(half)},
                        {"scalar", DataType::kF32, {}, bytes_of(weights).first(4)},
                        {"none", DataType::kF32, {0, 5}, bytes_of(none)}},
                       {{"updates", "17"}});
  ASSERT_TRUE(written) << written.error().what;
  EXPECT_EQ(written->bytes, fs::file_size(path_));
  EXPECT_EQ(written->checksum, *checksum_file_hex(path_));
  auto reader = Reader::open(path_);
  ASSERT_TRUE(reader) << reader.error().what;
  EXPECT_EQ(reader->metadata().at("updates"), "17");
  EXPECT_EQ(reader->entries().size(), 4u);
  std::vector<float> back(6);
  ASSERT_TRUE(reader->read("w", DataType::kF32, {2, 3}, std::as_writable_bytes(std::span(back))));
  EXPECT_EQ(back, weights);
  auto status = reader->read("w", DataType::kF32, {3, 2}, std::as_writable_bytes(std::span(back)));
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().what, HasSubstr("F32[2,3], wanted F32[3,2]"));
  EXPECT_EQ(
      reader->read("x", DataType::kF32, {6}, std::as_writable_bytes(std::span(back))).error().code,
      ErrorCode::kNotFound);
}

// Exactly the bytes that the format's description prescribes, so other readers understand them.
TEST_F(SafetensorsTest, BytesAreThoseOfTheFormat) {
  const std::vector<float> one = {1.0f};
  ASSERT_TRUE(write(path_, {{"a", DataType::kF32, {1}, bytes_of(one)}}, {}));
  std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string expected(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(expected.data(), &length, 8);
  expected += header + std::string("\x00\x00\x80\x3f", 4);
  EXPECT_EQ(*read_file(path_), expected);
}

TEST_F(SafetensorsTest, WriterRefusesWhatDoesNotFit) {
  const std::vector<float> two = {1, 2};
  EXPECT_FALSE(write(path_, {{"a", DataType::kF32, {3}, bytes_of(two)}}, {}));
  EXPECT_FALSE(write(
      path_, {{"a", DataType::kF32, {2}, bytes_of(two)}, {"a", DataType::kF32, {2}, bytes_of(two)}},
      {}));
}

TEST_F(SafetensorsTest, FilesMadeToDeceiveAreRefused) {
  const std::pair<std::string, size_t> cases[] = {
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8}, // unused bytes at the end
      // Shape and offsets disagree.
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},  // a gap
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,40]}})", 4}, // beyond the end
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4},  // backwards
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[92233720378554775807,1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}})", 16},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4},
      {R"({"a":{"dtype":"F32","shape":"x","data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4}, // overlap
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4}, // one name twice
      {R"({"a":17})", 0},
      {R"({"__metadata__":{"x":1}})", 0},
      {R"([1,2])", 0},
      {R"({"a":)", 0},
  };
  for (const auto& [header, data] : cases) {
    auto reader = open_crafted(header, data);
    EXPECT_FALSE(reader) << header;
  }
  EXPECT_TRUE(open_crafted(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
}

TEST_F(SafetensorsTest, HeaderLengthIsNotBelieved) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{1000}, ~uint64_t{0}, uint64_t{1} << 40}) {
    std::string text(reinterpret_cast<const char*>(&length), 8);
    text += "{}";
    ASSERT_TRUE(write_file_atomic(path_, text));
    EXPECT_FALSE(Reader::open(path_)) << length;
  }
  ASSERT_TRUE(write_file_atomic(path_, "1234"));
  EXPECT_FALSE(Reader::open(path_));
}

// A file with random damage is refused, or its header still covers the data without gaps. Nothing
// crashes. The manifest's checksum detects changed contents.
TEST_F(SafetensorsTest, RandomDamageNeverCrashes) {
  const std::vector<float> weights(64, 1.0f);
  ASSERT_TRUE(write(path_,
                    {{"layer.weight", DataType::kF32, {8, 8}, bytes_of(weights)},
                     {"layer.bias", DataType::kF32, {64}, bytes_of(weights)}},
                    {{"k", "v"}}));
  const std::string good = *read_file(path_);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int flips = 1 + int(random() % 4); flips > 0; --flips)
      bad[random() % 200] = static_cast<char>(random());
    std::ofstream(path_, std::ios::binary) << bad; // no fsync: 2,000 of them would take seconds
    refused += Reader::open(path_) ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

} // namespace
} // namespace nsa::safetensors
