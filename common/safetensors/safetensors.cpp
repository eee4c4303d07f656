#include "common/safetensors/safetensors.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::safetensors {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
constexpr size_t kMaxDimensions = 8;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 46;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeName {
  DataType type;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<TypeName, 6> kTypes = {{{DataType::kF32, "F32", 4},
                                             {DataType::kBF16, "BF16", 2},
                                             {DataType::kF16, "F16", 2},
                                             {DataType::kF64, "F64", 8},
                                             {DataType::kI64, "I64", 8},
                                             {DataType::kU8, "U8", 1}}};

std::optional<DataType> parse_type(std::string_view name) {
  for (const TypeName& t : kTypes)
    if (t.name == name) return t.type;
  return std::nullopt;
}

// Returns the bytes of a tensor of this shape; nullopt if the shape is negative or too large.
std::optional<uint64_t> bytes_of(const std::vector<int64_t>& shape, DataType type) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  uint64_t bytes = data_type_bytes(type);
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent > 0 && bytes > kMaxTensorBytes / static_cast<uint64_t>(extent)) return std::nullopt;
    bytes *= static_cast<uint64_t>(extent);
  }
  return bytes;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return json(shape).dump();
}

Status read_exactly(int fd, void* into, size_t size, uint64_t offset) {
  auto* at = static_cast<char*>(into);
  while (size > 0) {
    const ssize_t got = ::pread(fd, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read");
    if (got == 0) return fail(ErrorCode::kCorrupt, "the file ends too early");
    at += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return {};
}

// Parses the header's JSON. A repeated name is an error, which nlohmann's parser alone does not
// report.
Result<json> parse_header(const std::string& text, const std::string& path) {
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get<std::string>()).second)
      repeated = parsed.get<std::string>();
    return true;
  };
  NSA_TRY_ASSIGN(json header, parse_json(text, path + ": its header",
                                         {.bytes = kMaxHeaderBytes, .depth = 8}, watch));
  if (!header.is_object())
    return fail(ErrorCode::kCorrupt, path + ": its header is not a JSON object");
  if (!repeated.empty())
    return fail(ErrorCode::kCorrupt, path + ": its header names tensor " + repeated + " twice");
  return header;
}

Result<Reader::Entry> parse_entry(const std::string& name, const json& j, uint64_t data_bytes) {
  Reader::Entry entry;
  try {
    const auto type = parse_type(j.at("dtype").get<std::string>());
    if (!type)
      return fail(ErrorCode::kUnsupported,
                  "tensor " + name + " has dtype " + j.at("dtype").get<std::string>());
    entry.type = *type;
    j.at("shape").get_to(entry.shape);
    const json& offsets = j.at("data_offsets");
    if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
      return fail(ErrorCode::kCorrupt, "tensor " + name + " has no usable offsets");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
  } catch (const json::exception&) {
    return fail(ErrorCode::kCorrupt, "the header entry of tensor " + name + " has the wrong shape");
  }
  const auto bytes = bytes_of(entry.shape, entry.type);
  if (!bytes || entry.begin > entry.end || entry.end > data_bytes ||
      entry.end - entry.begin != *bytes)
    return fail(ErrorCode::kCorrupt, "tensor " + name + " of shape " + shape_text(entry.shape) +
                                         " does not fit its offsets");
  return entry;
}

} // namespace

std::string_view data_type_name(DataType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

size_t data_type_bytes(DataType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

Result<WrittenFile> write(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                          const Metadata& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  uint64_t offset = 0;
  std::set<std::string_view> names;
  for (const TensorView& t : tensors) {
    if (t.name == kMetadataKey || !names.insert(t.name).second)
      return fail(ErrorCode::kInvalidArgument, "two tensors are named " + t.name);
    const auto bytes = bytes_of(t.shape, t.type);
    if (!bytes || *bytes != t.bytes.size())
      return fail(ErrorCode::kInvalidArgument,
                  "tensor " + t.name + " has " + std::to_string(t.bytes.size()) +
                      " bytes, which shape " + shape_text(t.shape) + " does not hold");
    header[t.name] = {{"dtype", data_type_name(t.type)},
                      {"shape", t.shape},
                      {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' '); // aligns the data to 8 bytes
  const uint64_t length = text.size();

  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return fail_errno("cannot create " + path.string());
  ChecksumStream checksum;
  WrittenFile written;
  auto put = [&](const void* data, size_t size) -> Status {
    checksum.update(data, size);
    written.bytes += size;
    return write_all(fd.get(), data, size);
  };
  auto write_all_parts = [&]() -> Status {
    NSA_TRY(put(&length, sizeof length));
    NSA_TRY(put(text.data(), text.size()));
    for (const TensorView& t : tensors)
      NSA_TRY(put(t.bytes.data(), t.bytes.size()));
    if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync");
    return {};
  };
  if (auto status = write_all_parts(); !status)
    return fail(std::move(status).error().within("writing " + path.string()));
  written.checksum = checksum.hex();
  return written;
}

Result<Reader> Reader::open(const std::filesystem::path& path) {
  Reader reader;
  reader.path_ = path.string();
  const auto broken = [&](const std::string& how) {
    return fail(ErrorCode::kCorrupt, reader.path_ + ": " + how);
  };
  reader.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.fd_) return fail_errno("cannot open " + path.string());
  struct stat info{};
  if (::fstat(reader.fd_.get(), &info) != 0) return fail_errno("cannot stat " + path.string());
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  uint64_t length = 0;
  if (file_bytes < sizeof length) return broken("it is too short for a safetensors file");
  if (auto ok = read_exactly(reader.fd_.get(), &length, sizeof length, 0); !ok)
    return fail(std::move(ok).error().within(reader.path_));
  if (length > kMaxHeaderBytes || length > file_bytes - sizeof length)
    return broken("its header length is out of range");
  std::string text(length, '\0');
  if (auto ok = read_exactly(reader.fd_.get(), text.data(), length, sizeof length); !ok)
    return fail(std::move(ok).error().within(reader.path_));
  NSA_TRY_ASSIGN(const json header, parse_header(text, reader.path_));
  reader.data_begin_ = sizeof length + length;
  const uint64_t data_bytes = file_bytes - reader.data_begin_;
  for (const auto& [name, j] : header.items()) {
    if (name == kMetadataKey) {
      try {
        j.get_to(reader.metadata_);
      } catch (const json::exception&) {
        return broken("its metadata are not strings");
      }
      continue;
    }
    auto entry = parse_entry(name, j, data_bytes);
    if (!entry) return broken(entry.error().what);
    reader.entries_.emplace(name, std::move(*entry));
  }
  // In order of offset, the tensors must cover the data: no overlap, no gap, no rest.
  std::vector<const Entry*> in_order;
  for (const auto& [name, entry] : reader.entries_)
    in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t covered = 0;
  for (const Entry* entry : in_order) {
    if (entry->begin != covered) return broken("its tensors overlap or leave a gap");
    covered = entry->end;
  }
  if (covered != data_bytes) return broken("it holds data that belong to no tensor");
  return reader;
}

Status Reader::read(const std::string& name, DataType type, const std::vector<int64_t>& shape,
                    std::span<std::byte> into) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    return fail(ErrorCode::kNotFound, path_ + " holds no tensor " + name);
  const Entry& entry = found->second;
  if (entry.type != type || entry.shape != shape || entry.end - entry.begin != into.size())
    return fail(ErrorCode::kInvalidArgument,
                path_ + ": tensor " + name + " is " + std::string(data_type_name(entry.type)) +
                    shape_text(entry.shape) + ", wanted " + std::string(data_type_name(type)) +
                    shape_text(shape),
                "resume with the model sizes that the checkpoint was written with");
  auto status = read_exactly(fd_.get(), into.data(), into.size(), data_begin_ + entry.begin);
  if (!status) return fail(std::move(status).error().within(path_ + ", tensor " + name));
  return {};
}

} // namespace nsa::safetensors
