#include "common/base/checksum.h"

#include "common/base/file.h"

#include <unistd.h>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace nsa {

namespace {
std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}
} // namespace

struct ChecksumStream::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->xxh);
}
ChecksumStream::~ChecksumStream() = default;
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream& ChecksumStream::operator=(ChecksumStream&&) noexcept = default;
void ChecksumStream::update(const void* data, size_t size) {
  XXH3_128bits_update(state_->xxh, data, size);
}
std::string ChecksumStream::hex() const {
  return to_hex(XXH3_128bits_digest(state_->xxh));
}

std::string checksum_hex(std::string_view data) {
  return to_hex(XXH3_128bits(data.data(), data.size()));
}

uint32_t checksum32(std::initializer_list<std::string_view> parts) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  for (const std::string_view part : parts)
    XXH3_64bits_update(&state, part.data(), part.size());
  return static_cast<uint32_t>(XXH3_64bits_digest(&state));
}

Result<std::string> checksum_file_hex(const std::filesystem::path& path) {
  NSA_TRY_ASSIGN(const UniqueFd fd, open_regular_file(path));
  ChecksumStream stream;
  std::vector<char> chunk(size_t{1} << 20);
  while (true) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read " + path.string());
    if (got == 0) return stream.hex();
    stream.update(chunk.data(), static_cast<size_t>(got));
  }
}

} // namespace nsa
