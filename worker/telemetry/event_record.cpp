#include "worker/telemetry/event_record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace nsa::telemetry {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}();

template <class T> void append_little_endian(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

// TFRecord stores checksums rotated and offset, because a CRC of data that contains CRCs is weak.
uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8u;
}

// Protocol buffers, wire format: a field is (number << 3 | type), then its value.
class Message {
public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    append_varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    key(field, 1);
    append_little_endian(bytes_, value);
    return *this;
  }
  Message& fixed32(int field, float value) {
    key(field, 5);
    append_little_endian(bytes_, value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    append_varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  std::string take() { return std::move(bytes_); }

private:
  void key(int field, int type) { append_varint(static_cast<uint64_t>(field << 3 | type)); }
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7)
      bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

// Field numbers of tensorflow.Event, Summary, Summary.Value, SessionLog and TensorProto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}

// SummaryMetadata: the TensorBoard plugin that shows the value, and data for that plugin.
Message metadata_of(std::string_view plugin, std::string_view content = {}) {
  Message data;
  data.bytes(1, plugin);
  if (!content.empty()) data.bytes(2, content);
  return Message().message(1, data);
}

// Returns a TensorShapeProto with these sizes.
Message shape_of(std::initializer_list<uint64_t> sizes) {
  Message shape;
  for (const uint64_t size : sizes)
    shape.message(2, Message().varint(1, size));
  return shape;
}

Message event_at(double wall_time, int64_t step) {
  Message message;
  message.fixed64(event::kWallTime, wall_time);
  message.varint(event::kStep, static_cast<uint64_t>(step));
  return message;
}

} // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : data)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string frame_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(data.size()));
  append_little_endian(record, masked_crc(record));
  record.append(data);
  append_little_endian(record, masked_crc(data));
  return record;
}

std::string encode_file_version(double wall_time) {
  Message message;
  return message.fixed64(event::kWallTime, wall_time)
      .bytes(event::kFileVersion, "brain.Event:2")
      .take();
}

std::string encode_scalars(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  Message values;
  for (const auto& [tag, number] : scalars)
    values.message(
        summary::kValue,
        Message().bytes(value::kTag, tag).fixed32(value::kSimpleValue, static_cast<float>(number)));
  return event_at(wall_time, step).message(event::kSummary, values).take();
}

std::string encode_text(double wall_time, int64_t step, std::string_view tag,
                        std::string_view text) {
  constexpr uint64_t kString = 7; // DT_STRING
  const Message tensor = Message().varint(1, kString).message(2, shape_of({1})).bytes(8, text);
  Message values;
  values.message(summary::kValue, Message()
                                      .bytes(value::kTag, tag)
                                      .message(value::kTensor, tensor)
                                      .message(value::kMetadata, metadata_of("text")));
  return event_at(wall_time, step).message(event::kSummary, values).take();
}

std::string encode_histogram(double wall_time, int64_t step, std::string_view tag,
                             const std::vector<double>& values) {
  constexpr size_t kBuckets = 20;
  constexpr uint64_t kDouble = 2; // DT_DOUBLE
  std::array<uint64_t, kBuckets> counts{};
  for (const double value : values)
    ++counts[static_cast<size_t>(std::clamp(value * kBuckets, 0.0, kBuckets - 1.0))];
  std::string rows; // for each bucket: left edge, right edge, number of values
  for (size_t i = 0; i < kBuckets; ++i) {
    append_little_endian(rows, static_cast<double>(i) / kBuckets);
    append_little_endian(rows, static_cast<double>(i + 1) / kBuckets);
    append_little_endian(rows, static_cast<double>(counts[i]));
  }
  const Message tensor =
      Message().varint(1, kDouble).message(2, shape_of({kBuckets, 3})).bytes(4, rows);
  Message summary;
  summary.message(summary::kValue, Message()
                                       .bytes(value::kTag, tag)
                                       .message(value::kTensor, tensor)
                                       .message(value::kMetadata, metadata_of("histograms")));
  return event_at(wall_time, step).message(event::kSummary, summary).take();
}

std::string encode_parameters(double wall_time, const std::vector<Parameter>& parameters) {
  Message start; // hparams.SessionStartInfo: a map from names to google.protobuf.Value, and a time
  for (const auto& [name, parameter] : parameters) {
    Message value;
    if (const auto* number = std::get_if<double>(&parameter))
      value.fixed64(2, *number);
    else if (const auto* flag = std::get_if<bool>(&parameter))
      value.varint(4, *flag ? 1 : 0);
    else
      value.bytes(3, std::get<std::string>(parameter));
    start.message(1, Message().bytes(1, name).message(2, value));
  }
  start.fixed64(5, wall_time);
  Message data; // hparams.HParamsPluginData: version 0
  const std::string content = data.message(3, start).take();
  Message summary;
  summary.message(summary::kValue, Message()
                                       .bytes(value::kTag, "_hparams_/session_start_info")
                                       .message(value::kMetadata, metadata_of("hparams", content)));
  return event_at(wall_time, 0).message(event::kSummary, summary).take();
}

std::string encode_session_start(double wall_time, int64_t first_step) {
  constexpr uint64_t kStart = 1;
  return event_at(wall_time, first_step)
      .message(event::kSessionLog, Message().varint(1, kStart))
      .take();
}

} // namespace nsa::telemetry
