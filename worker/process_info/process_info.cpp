#include "worker/process_info/process_info.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <algorithm>
#include <ctime>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nsa::runtime {

uint64_t resident_bytes() {
  const auto text = read_file("/proc/self/statm");
  if (!text) return 0;
  const auto fields = split(*text, ' ');
  if (fields.size() < 2) return 0;
  return std::strtoull(fields[1].c_str(), nullptr, 10) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

double process_age_seconds() {
  // Field 22 of proc(5)'s stat, counted after the name, which may contain spaces and brackets.
  constexpr size_t kStartTime = 19;
  const auto text = read_file("/proc/self/stat");
  const size_t name_end = text ? text->rfind(')') : std::string::npos;
  timespec now{};
  if (name_end == std::string::npos || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const auto fields = split(std::string_view(*text).substr(name_end + 2), ' ');
  if (fields.size() <= kStartTime) return 0;
  const double started =
      static_cast<double>(std::strtoull(fields[kStartTime].c_str(), nullptr, 10)) /
      static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::max(0.0, static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9 -
                           started);
}

std::string fast_bf16_instructions() {
#if defined(__x86_64__)
  // Intel SDM volume 2A, CPUID: leaf 7 sub-leaf 0 EDX bit 22 (AMX-BF16), sub-leaf 1 EAX bit 5
  // (AVX512_BF16).
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (1u << 22))) return "AMX";
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5))) return "AVX512-BF16";
#endif
  return "";
}

std::string cpu_model() {
  const auto text = read_file("/proc/cpuinfo");
  if (text)
    for (const std::string& line : split(*text, '\n'))
      if (line.rfind("model name", 0) == 0)
        return std::string(trim(line.substr(line.find(':') + 1)));
  return "cpu";
}

Result<std::filesystem::path> program_folder() {
  std::error_code ec;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (ec) return fail(ErrorCode::kSystem, "cannot find this program's folder: " + ec.message());
  return program.parent_path();
}

} // namespace nsa::runtime
