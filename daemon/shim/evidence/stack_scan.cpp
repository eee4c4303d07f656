#include "daemon/shim/evidence/stack_scan.h"

#include <algorithm>
#include <cstring>
#include <sys/uio.h>

namespace nsa::shim::evidence {

namespace {

constexpr size_t kScanBytes = 128 * 1024; // CPU kernels keep tiles of their operands on the stack
constexpr size_t kPageBytes = 4096;
constexpr size_t kLongestCall = 7;

size_t read_memory(pid_t pid, uint64_t address, void* to, size_t size) {
  const iovec local{to, size};
  const iovec remote{reinterpret_cast<void*>(address), size};
  const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

} // namespace

bool ends_in_call(const unsigned char* bytes, size_t size) {
  if (size >= 5 && bytes[size - 5] == 0xe8) return true;
  // Opcode ff with 2 in the middle bits of the next byte; 2 to 7 bytes long, depending on the
  // addressing mode.
  for (size_t length = 2; length <= std::min(size, kLongestCall); ++length)
    if (bytes[size - length] == 0xff && (bytes[size - length + 1] >> 3 & 7) == 2) return true;
  return false;
}

std::vector<uint64_t> scan_return_addresses(pid_t pid, uint64_t stack_pointer,
                                            const std::function<bool(uint64_t)>& is_code,
                                            size_t limit) {
  // Read page by page, because a read across the end of the stack would return nothing.
  std::vector<unsigned char> stack;
  for (uint64_t at = stack_pointer & ~uint64_t{7}; stack.size() < kScanBytes;) {
    unsigned char page[kPageBytes];
    const size_t got = read_memory(pid, at, page, kPageBytes - at % kPageBytes);
    if (got == 0) break;
    stack.insert(stack.end(), page, page + got);
    at += got;
  }
  std::vector<uint64_t> found;
  for (size_t at = 0; at + 8 <= stack.size() && found.size() < limit; at += 8) {
    uint64_t value;
    std::memcpy(&value, &stack[at], sizeof value);
    unsigned char before[kLongestCall];
    if (is_code(value) &&
        read_memory(pid, value - kLongestCall, before, kLongestCall) == kLongestCall &&
        ends_in_call(before, kLongestCall))
      found.push_back(value);
  }
  return found;
}

} // namespace nsa::shim::evidence
