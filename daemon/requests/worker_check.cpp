#include "daemon/requests/worker_check.h"

#include "common/base/text.h"
#include "common/base/unique_fd.h"
#include "daemon/run_metrics/provenance.h"

#include <algorithm>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace nsa::control {

namespace {

constexpr size_t kMostOutput = 1 << 20;

// Output of the loader when it is asked to list a program's libraries, as ldd(1) asks it.
Result<std::string> list_libraries(const std::string& loader, const std::string& program) {
  std::vector<std::string> words = {loader, program}, variables = {"LD_TRACE_LOADED_OBJECTS=1"};
  for (char** e = environ; *e != nullptr; ++e)
    variables.emplace_back(*e);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), STDERR_FILENO);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts)
      list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  std::vector<char*> arguments = pointers(words), environment = pointers(variables);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, loader.c_str(), &actions, nullptr, arguments.data(),
                                   environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  errno = failed;
  if (failed != 0) return fail_errno("cannot start " + loader);
  writing.reset();
  std::string text;
  char chunk[4096];
  for (ssize_t got; (got = ::read(reading.get(), chunk, sizeof chunk)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || text.size() > kMostOutput) break;
    text.append(chunk, static_cast<size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return text;
}

} // namespace

Status find_libraries(const std::string& program) {
  const std::string loader = program_interpreter(program);
  if (loader.empty()) return {}; // a script or a static program needs no libraries
  NSA_TRY_ASSIGN(const std::string listed, list_libraries(loader, program));
  // The loader lists a library once for each library that needs it.
  std::vector<std::string> missing;
  for (const std::string& line : split(listed, '\n'))
    if (line.find("=> not found") != std::string::npos)
      if (std::string name(trim(line.substr(0, line.find("=>"))));
          std::find(missing.begin(), missing.end(), name) == missing.end())
        missing.push_back(std::move(name));
  if (missing.empty()) return {};
  const std::string names = join(missing, ", ");
  const bool torch =
      names.find("libtorch") != std::string::npos || names.find("libc10") != std::string::npos;
  return fail(ErrorCode::kUnsupported,
              (torch ? "LibTorch is missing: " : "libraries are missing: ") + program + " needs " +
                  names,
              torch ? "in the checkout: make setup; of a package: ln -s <folder>/torch "
                      "<package>/torch, where <folder> holds LibTorch"
                    : "install them, then look again with: nsactl doctor");
}

Status WorkerCheck::check() {
  struct stat info{};
  if (::stat(program_.c_str(), &info) != 0 || ::access(program_.c_str(), X_OK) != 0)
    return fail(ErrorCode::kUnsupported, "the trainer " + program_ + " is not there",
                "build it: make; or name it in nsad.toml (programs.worker)");
  const Stamp stamp = {info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  const std::lock_guard lock(mutex_);
  if (good_ == stamp) return {};
  NSA_TRY(find_libraries(program_));
  good_ = stamp;
  return {};
}

} // namespace nsa::control
