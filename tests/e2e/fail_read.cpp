// The end-to-end test ledger_read_error loads this into nsad. One read of ledger.db fails, as on a
// broken disk. NSA_FAIL_READ has the number of that read, counted from 1, and a file that is
// created when it has failed: "7:/tmp/failed".
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

bool is_ledger(int fd) {
  char link[64], path[4096];
  char digits[16];
  int n = 0, value = fd;
  do
    digits[n++] = static_cast<char>('0' + value % 10);
  while ((value /= 10) != 0);
  std::strcpy(link, "/proc/self/fd/");
  size_t end = std::strlen(link);
  while (n > 0)
    link[end++] = digits[--n];
  link[end] = '\0';
  const ssize_t got = ::readlink(link, path, sizeof path - 1);
  if (got <= 0) return false;
  path[got] = '\0';
  constexpr char kName[] = "/ledger.db";
  const size_t length = sizeof kName - 1;
  return static_cast<size_t>(got) >= length && std::strcmp(path + got - length, kName) == 0;
}

bool fails_now(int fd) {
  static const char* wish = std::getenv("NSA_FAIL_READ");
  static std::atomic<long> count{0};
  if (wish == nullptr || !is_ledger(fd)) return false;
  char* told = nullptr;
  if (++count != std::strtol(wish, &told, 10)) return false;
  if (*told == ':') ::close(::open(told + 1, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  errno = EIO;
  return true;
}

using Read = ssize_t (*)(int, void*, size_t, off64_t);

ssize_t read_or_fail(const char* name, int fd, void* into, size_t size, off64_t at) {
  if (fails_now(fd)) return -1;
  return reinterpret_cast<Read>(::dlsym(RTLD_NEXT, name))(fd, into, size, at);
}

} // namespace

extern "C" ssize_t pread(int fd, void* into, size_t size, off_t at) {
  return read_or_fail("pread", fd, into, size, at);
}

extern "C" ssize_t pread64(int fd, void* into, size_t size, off64_t at) {
  return read_or_fail("pread64", fd, into, size, at);
}
