#include "daemon/hooks/hooks.h"

#include "common/base/file.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "daemon/proc/process.h"

#include <csignal>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::hooks {

namespace {

constexpr size_t kTold = 300; // bytes of a hook's last output that a failure quotes

// Returns a memory file that holds `text`, positioned at its beginning.
Result<UniqueFd> memory_file(const char* name, const std::string& text) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) return fail_errno("cannot make a file in memory");
  if (!text.empty()) NSA_TRY(write_all(fd.get(), text.data(), text.size()));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return fail_errno("cannot rewind a file in memory");
  return fd;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  return environment;
}

Result<std::string> find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path ? path : "/usr/bin:/bin", ':'))
    if (std::string file = folder + "/" + name;
        !folder.empty() && ::access(file.c_str(), X_OK) == 0)
      return file;
  return fail(ErrorCode::kNotFound, name + " is not in PATH", "apt install " + name);
}

// curl reads these settings from a descriptor, so that a URL with a secret appears in no process
// list.
std::string curl_settings(const std::string& url, Duration limit) {
  return "url = \"" + url +
         "\"\nheader = \"Content-Type: application/json\"\ndata-binary = \"@-\"\nfail\nsilent\n"
         "show-error\nmax-time = " +
         std::to_string(to_seconds(limit)) + "\n";
}

std::string last_output(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size <= 0) return {};
  std::string text(std::min(static_cast<size_t>(size), kTold), '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), size - static_cast<off_t>(text.size()));
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return printable(trim(text));
}

std::string failure_of(const proc::ExitStatus& status, int output) {
  if (status.signal == 0 && status.exit_code == 0) return {};
  const std::string how = status.signal != 0 ? "ended by signal " + std::to_string(status.signal)
                                             : "exit " + std::to_string(status.exit_code);
  const std::string said = last_output(output);
  return said.empty() ? how : how + ": " + said;
}

} // namespace

Hooks::Hooks(net::EventLoop& loop, HookOptions options, Failed failed)
    : loop_(loop), options_(std::move(options)), failed_(std::move(failed)) {}

Hooks::~Hooks() {
  for (const auto& [number, hook] : running_) {
    ::kill(-hook.child.pid, SIGKILL);
    ::waitpid(hook.child.pid, nullptr, 0); // returns soon after the SIGKILL
  }
}

void Hooks::tell(const Notice& notice) {
  const std::string text = notice.body.dump() + "\n";
  for (const Kind kind : {Kind::kCommand, Kind::kWebhook}) {
    if (kind == Kind::kCommand ? options_.command.empty() : options_.webhook.empty()) continue;
    if (waiting_.size() >= kMostWaiting)
      fail_later(notice.run, "too many notices wait: this one is dropped");
    else
      waiting_.push_back({kind, notice.run, text});
  }
  start_waiting();
}

void Hooks::start_waiting() {
  while (!waiting_.empty() && running_.size() < kMostRunning) {
    const Waiting hook = std::move(waiting_.front());
    waiting_.pop_front();
    if (const Status started = start(hook); !started)
      fail_later(hook.run, started.error().what +
                               (started.error().next.empty() ? "" : "; " + started.error().next));
  }
}

Status Hooks::start(const Waiting& hook) {
  const bool command = hook.kind == Kind::kCommand;
  NSA_TRY_ASSIGN(const UniqueFd input, memory_file("notice", hook.text));
  NSA_TRY_ASSIGN(UniqueFd output, memory_file("output", ""));
  NSA_TRY_ASSIGN(
      const UniqueFd settings,
      memory_file("settings", command ? "" : curl_settings(options_.webhook, options_.limit)));
  proc::LaunchSpec spec;
  spec.arguments = options_.command;
  spec.environment = own_environment();
  spec.working_folder = "/";
  spec.new_process_group = true;
  spec.descriptors = {{input.get(), 0}, {output.get(), 1}, {output.get(), 2}};
  if (!command) {
    NSA_TRY_ASSIGN(const std::string curl, find_program("curl"));
    // -q: curl reads no settings of the user.
    spec.arguments = {curl, "-q", "--config", "/dev/fd/3"};
    spec.descriptors.push_back({settings.get(), 3});
  }
  auto child = proc::launch(spec);
  if (!child) return fail(std::move(child).error().within("cannot start the hook"));
  const uint64_t number = next_++;
  Running& running = running_[number];
  running.name = command ? "the command" : "the webhook";
  running.run = hook.run;
  running.child = std::move(*child);
  running.output = std::move(output);
  running.ended =
      loop_.when_readable(running.child.pidfd.get(), [this, number] { on_ended(number); });
  running.limit =
      loop_.after(options_.limit + std::chrono::seconds(command ? 0 : 1), [this, number] {
        Running& late = running_.at(number);
        late.too_long = true;
        ::kill(-late.child.pid, SIGKILL);
      });
  return {};
}

void Hooks::on_ended(uint64_t number) {
  const auto found = running_.find(number);
  const auto status = proc::wait_child(found->second.child.pidfd.get());
  if (status && !*status) return; // not yet
  const Running hook = std::move(found->second);
  running_.erase(found);
  std::string what =
      !status ? status.error().what
      : hook.too_long
          ? "it took longer than " + format_duration(to_seconds(options_.limit)) + " and was killed"
          : failure_of(**status, hook.output.get());
  if (!what.empty()) fail_later(hook.run, hook.name + ": " + std::move(what));
  start_waiting();
}

void Hooks::fail_later(const RunId& run, std::string what) {
  loop_.post([this, alive = std::weak_ptr<bool>(alive_), run, what = std::move(what)] {
    if (!alive.expired()) failed_(run, what);
  });
}

} // namespace nsa::hooks
