#include "daemon/proc/procfs.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <algorithm>
#include <charconv>
#include <dirent.h>
#include <memory>
#include <unistd.h>

namespace nsa::proc {

namespace {

std::string process_path(pid_t pid, std::string_view leaf) {
  return "/proc/" + std::to_string(pid) + "/" + std::string(leaf);
}

std::string thread_path(pid_t pid, pid_t tid, std::string_view leaf) {
  return "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/" + std::string(leaf);
}

template <class T> T number(std::string_view text) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::vector<pid_t> numbered_entries(const std::string& folder) {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (!listing) return found;
  while (const dirent* entry = ::readdir(listing.get()))
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
      found.push_back(number<pid_t>(entry->d_name));
  std::sort(found.begin(), found.end());
  return found;
}

std::string read_trimmed(const std::string& path) {
  const auto text = read_file(path, 1 << 16);
  return text ? std::string(trim(*text)) : std::string();
}

} // namespace

Result<ProcessStat> parse_stat(std::string_view text) {
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open)
    return fail(ErrorCode::kCorrupt, "a stat file has no program name");
  ProcessStat stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::vector<std::string_view> fields; // fields of proc(5), from field 3 on
  for (size_t at = close + 1; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \n", at);
    if (begin == std::string_view::npos) break;
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    at = end;
  }
  if (fields.size() < 20) return fail(ErrorCode::kCorrupt, "a stat file is cut short");
  stat.state = fields[0][0];
  stat.parent = number<pid_t>(fields[1]);
  stat.group = number<pid_t>(fields[2]);
  stat.session = number<pid_t>(fields[3]);
  stat.user_ticks = number<uint64_t>(fields[11]);
  stat.system_ticks = number<uint64_t>(fields[12]);
  stat.threads = number<int64_t>(fields[17]);
  stat.start_time_ticks = number<uint64_t>(fields[19]);
  return stat;
}

namespace {
Result<ProcessStat> stat_at(const std::string& path, pid_t id) {
  const auto text = read_file(path, 1 << 16);
  // Reading the file of a process that ends meanwhile gives ESRCH.
  if (!text)
    return fail(ErrorCode::kNotFound, "process or thread " + std::to_string(id) + " has ended");
  return parse_stat(*text);
}
} // namespace

Result<ProcessStat> read_stat(pid_t pid) {
  return stat_at(process_path(pid, "stat"), pid);
}

Result<ProcessStat> read_thread_stat(pid_t pid, pid_t tid) {
  return stat_at(thread_path(pid, tid, "stat"), tid);
}

Result<std::vector<pid_t>> list_threads(pid_t pid) {
  auto threads = numbered_entries(process_path(pid, "task"));
  if (threads.empty())
    return fail(ErrorCode::kNotFound, "process " + std::to_string(pid) + " has ended");
  const auto main = std::find(threads.begin(), threads.end(), pid);
  if (main != threads.end()) std::rotate(threads.begin(), main, main + 1);
  return threads;
}

std::string read_wait_channel(pid_t pid, pid_t tid) {
  std::string channel = read_trimmed(thread_path(pid, tid, "wchan"));
  return channel == "0" ? std::string() : channel;
}

std::string read_syscall(pid_t pid, pid_t tid) {
  return read_trimmed(thread_path(pid, tid, "syscall"));
}

pid_t read_tracer(pid_t pid) {
  const auto text = read_file(process_path(pid, "status"), 1 << 16);
  if (!text) return 0;
  const size_t at = text->find("TracerPid:");
  return at == std::string::npos ? 0
                                 : number<pid_t>(trim(std::string_view(*text).substr(at + 10, 16)));
}

uint64_t read_resident_bytes(pid_t pid) {
  const std::string text = read_trimmed(process_path(pid, "statm"));
  const size_t blank = text.find(' ');
  if (blank == std::string::npos) return 0;
  return number<uint64_t>(std::string_view(text).substr(blank + 1)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::vector<pid_t> list_processes() {
  return numbered_entries("/proc");
}

} // namespace nsa::proc
