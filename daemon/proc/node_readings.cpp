#include "daemon/proc/node_readings.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <cstdlib>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace nsa::proc {

uint64_t read_oom_kills() {
  const auto text = read_file("/proc/vmstat", 1 << 16);
  if (!text) return 0;
  const size_t at = text->find("oom_kill ");
  return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at + 9, nullptr, 10);
}

double ticks_to_seconds(uint64_t ticks) {
  static const double per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(ticks) / per_second;
}

double read_run_delay_seconds(int64_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/schedstat", 256);
  if (!text) return 0;
  const auto words = split(*text, ' ');
  return words.size() < 2 ? 0
                          : static_cast<double>(std::strtoull(words[1].c_str(), nullptr, 10)) / 1e9;
}

std::string random_token() {
  unsigned char bytes[16];
  // The call cannot fail for so few bytes once the kernel's generator is initialised.
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) std::abort();
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string token;
  for (const unsigned char b : bytes) {
    token.push_back(kDigits[b >> 4]);
    token.push_back(kDigits[b & 15]);
  }
  return token;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

std::pair<uint64_t, uint64_t> disk_space(const std::string& folder) {
  struct statvfs info{};
  if (::statvfs(folder.c_str(), &info) != 0) return {0, 0};
  return {uint64_t{info.f_bavail} * info.f_frsize, uint64_t{info.f_blocks} * info.f_frsize};
}

} // namespace nsa::proc
