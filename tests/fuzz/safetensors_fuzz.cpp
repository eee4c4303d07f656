// A file of tensors. It is refused with its path, or its entries cover its data without gaps. The
// target first corrects the header's length, so that the fuzzer varies the header's text.
#include "common/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  static const int fd = ::memfd_create("fuzz.safetensors", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  std::string file(fuzz::text_of(data, size));
  // The header ends at the last brace, and the data follow it. A file that begins with other bytes
  // stays unchanged.
  if (file.starts_with('{')) {
    const uint64_t header = file.rfind('}') + 1; // npos + 1 is 0
    file.insert(0, reinterpret_cast<const char*>(&header), sizeof header);
  }
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, file.data(), file.size(), 0) != static_cast<ssize_t>(file.size()))
    std::abort();
  const auto reader = safetensors::Reader::open(path);
  if (!reader) fuzz::expect_error(reader, path);
  return 0;
}
