#include "daemon/metrics/process.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <filesystem>
#include <sys/resource.h>
#include <unistd.h>

namespace nsa::metrics {

namespace {

// Returns a field of /proc/self/stat by its number in proc(5). The name in field 2 may contain
// blanks.
double stat_field(size_t number) {
  const auto stat = read_file("/proc/self/stat");
  if (!stat) return 0;
  const size_t after_name = stat->rfind(')');
  if (after_name == std::string::npos) return 0;
  const auto fields = split(stat->substr(after_name + 2), ' ');
  return number - 3 < fields.size() ? std::stod(fields[number - 3]) : 0;
}

double boot_time() {
  const auto stat = read_file("/proc/stat");
  if (!stat) return 0;
  for (const std::string& line : split(*stat, '\n'))
    if (line.rfind("btime ", 0) == 0) return std::stod(line.substr(6));
  return 0;
}

using S = const Snapshot&;

} // namespace

const std::vector<Row>& process_catalogue() {
  using enum Type;
  static const std::vector<Row> rows = {
      {"process_cpu_seconds_total", kCounter, "", "User and system CPU time of nsad.",
       [](S, Samples& out) {
         out.value({},
                   (stat_field(14) + stat_field(15)) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
       }},
      {"process_resident_memory_bytes", kGauge, "", "Resident memory of nsad.",
       [](S, Samples& out) {
         out.value({}, stat_field(24) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
       }},
      {"process_virtual_memory_bytes", kGauge, "", "Virtual memory of nsad.",
       [](S, Samples& out) { out.value({}, stat_field(23)); }, kQueryOnly},
      {"process_start_time_seconds", kGauge, "", "When nsad started.",
       [](S, Samples& out) {
         out.value({}, boot_time() + stat_field(22) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
       }},
      {"process_open_fds", kGauge, "", "Open descriptors of nsad.",
       [](S, Samples& out) {
         std::error_code error;
         double count = 0;
         for (std::filesystem::directory_iterator it("/proc/self/fd", error), end;
              !error && it != end; it.increment(error))
           ++count;
         out.value({}, count);
       }},
      {"process_max_fds", kGauge, "", "Descriptors that nsad may open.",
       [](S, Samples& out) {
         rlimit limit{};
         if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
           out.value({}, static_cast<double>(limit.rlim_cur));
       }},
  };
  return rows;
}

} // namespace nsa::metrics
