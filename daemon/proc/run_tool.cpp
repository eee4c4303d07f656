#include "daemon/proc/run_tool.h"

#include "common/base/file.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "daemon/proc/process.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

namespace nsa::proc {

namespace {

constexpr size_t kMostOutput = size_t{1} << 20;

Result<UniqueFd> memory_file(const std::string& text) {
  UniqueFd fd(::memfd_create("tool", MFD_CLOEXEC));
  if (!fd) return fail_errno("cannot make a file in memory");
  if (!text.empty()) NSA_TRY(write_all(fd.get(), text.data(), text.size()));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return fail_errno("cannot rewind a file in memory");
  return fd;
}

std::string content_of(int fd) {
  std::string text(kMostOutput, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// sbatch passes the environment of its caller on to the job, so the tool gets only these variables.
std::vector<std::string> own_environment() {
  constexpr std::array kNames = {"PATH", "HOME",       "USER",      "LOGNAME",
                                 "LANG", "SLURM_CONF", "KUBECONFIG"};
  std::vector<std::string> environment;
  for (const char* name : kNames)
    if (const char* value = std::getenv(name))
      environment.push_back(std::string(name) + "=" + value);
  return environment;
}

} // namespace

Result<std::string> find_tool(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (::access(name.c_str(), X_OK) == 0) return name;
    return fail(ErrorCode::kNotFound, "the program " + name + " is not there");
  }
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path != nullptr ? path : "/usr/bin:/bin", ':'))
    if (std::string file = folder + "/" + name;
        !folder.empty() && ::access(file.c_str(), X_OK) == 0)
      return file;
  return fail(ErrorCode::kNotFound, "the program " + name + " is not in nsad's PATH");
}

Result<std::string> run_tool(const ToolRun& tool, Duration limit) {
  NSA_TRY_ASSIGN(const std::string program, find_tool(tool.arguments.front()));
  const std::string name = program.substr(program.rfind('/') + 1);
  NSA_TRY_ASSIGN(const UniqueFd in, memory_file(tool.input));
  NSA_TRY_ASSIGN(const UniqueFd out, memory_file(""));
  NSA_TRY_ASSIGN(const UniqueFd said, memory_file(""));
  LaunchSpec spec;
  spec.arguments = tool.arguments;
  spec.arguments.front() = program;
  spec.environment = own_environment();
  spec.environment.insert(spec.environment.end(), tool.environment.begin(), tool.environment.end());
  spec.working_folder = tool.folder;
  spec.new_process_group = true;
  spec.descriptors = tool.descriptors;
  spec.descriptors.insert(spec.descriptors.end(), {{in.get(), 0}, {out.get(), 1}, {said.get(), 2}});
  auto child = launch(spec);
  if (!child) return fail(std::move(child).error().within("cannot start " + program));
  pollfd ended{child->pidfd.get(), POLLIN, 0};
  const auto milliseconds = static_cast<int>(to_seconds(limit) * 1000);
  const bool in_time = ::poll(&ended, 1, milliseconds) > 0;
  if (!in_time) {
    ::kill(-child->pid, SIGKILL);
    (void)::poll(&ended, 1, -1);
  }
  const auto status = wait_child(child->pidfd.get());
  if (!in_time)
    return fail(ErrorCode::kUnavailable, name + " took longer than " +
                                             format_duration(to_seconds(limit)) +
                                             " and was killed");
  if (!status || !*status)
    return fail(ErrorCode::kSystem, "the end of " + program + " is not known");
  if ((*status)->exit_code == 0) return content_of(out.get());
  std::string why = printable(trim(content_of(said.get())));
  if (why.empty()) why = "it ended with exit " + std::to_string((*status)->exit_code);
  return fail(ErrorCode::kSystem, name + ": " + why);
}

} // namespace nsa::proc
