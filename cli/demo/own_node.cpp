#include "cli/demo/own_node.h"

#include "common/base/embedded_file.h"
#include "common/base/file.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>

namespace nsa::demo {

namespace fs = std::filesystem;

const std::vector<EmbeddedFile>& run_files(); // defined by cli/demo/CMakeLists.txt

namespace {

constexpr const char* kMark = ".nsactl-demo"; // marks every folder that a demo made
constexpr size_t kLongestSocket = 100;        // limit in bytes; sun_path has 108
constexpr size_t kLongestAnswer = size_t{16} << 20;

// Uses any free port, because another nsad's Prometheus endpoint may hold the usual one.
constexpr const char* kNodeFile = "schema = 1\n[metrics]\nport = 0\n[resources]\ncpu_slots = 2\n";
// The demo uses its own daemon, whichever one this user or host prefers.
constexpr const char* kClientFile = "schema = 1\ndaemon = \"user\"\n";

bool is_over(const nlohmann::json& state) {
  for (const char* over : {"completed", "stopped", "failed", "cancelled", "paused"})
    if (state == over) return true;
  return false;
}

Result<UniqueFd> lock_folder(const fs::path& folder) {
  const fs::path path = folder / kMark;
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return fail_errno("cannot make " + path.string());
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kConflict, "another demo uses " + folder.string(),
                "wait for its end, or give this one a folder of its own: nsactl demo --state DIR");
  return lock;
}

} // namespace

bool is_of_a_demo(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kMark, error);
}

std::string_view run_file() {
  return run_files().front().text;
}

nlohmann::json at(const nlohmann::json& tree, const char* place) {
  const nlohmann::json::json_pointer pointer(place);
  return tree.contains(pointer) ? tree.at(pointer) : nlohmann::json();
}

Result<OwnNode> OwnNode::make(const fs::path& folder, std::string nsactl, Signals& signals) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  if ((whole / "run/nsa/nsad.sock").string().size() > kLongestSocket)
    return fail(ErrorCode::kInvalidArgument,
                "the path of " + whole.string() + " is too long for a socket in it",
                "give a shorter one: nsactl demo --state DIR");
  NSA_TRY(make_folder(whole));
  NSA_TRY_ASSIGN(UniqueFd lock, lock_folder(whole));
  NSA_TRY(make_folder(whole / "run", 0700));
  NSA_TRY(make_folder(whole / "config/nsa"));
  NSA_TRY(
      write_file_atomic(whole / "config/nsa/nsad.toml", kNodeFile, 0644, Survives::kProcessCrash));
  NSA_TRY(write_file_atomic(whole / "config/nsa/nsactl.toml", kClientFile, 0644,
                            Survives::kProcessCrash));
  ::unsetenv("NSA_SOCKET");
  ::setenv("XDG_STATE_HOME", (whole / "state").c_str(), 1);
  ::setenv("XDG_RUNTIME_DIR", (whole / "run").c_str(), 1);
  ::setenv("XDG_CONFIG_HOME", (whole / "config").c_str(), 1);
  return OwnNode(whole, std::move(nsactl), std::move(lock), signals);
}

Result<int> OwnNode::show(const std::vector<std::string>& words, Streams streams) {
  NSA_TRY_ASSIGN(const Ended ended,
                 run_command(nsactl_, words, streams, Interruption::kPassedOn, *signals_));
  return ended.exit_code;
}

Result<nlohmann::json> OwnNode::ask(std::vector<std::string> words) {
  const std::string called = "nsactl " + words.front();
  words.insert(words.end(), {"-o", "json"});
  NSA_TRY_ASSIGN(const Ended ended,
                 run_command(nsactl_, words, Streams::kTaken, Interruption::kPassedOn, *signals_));
  if (ended.exit_code != 0)
    return fail(ErrorCode::kInternal,
                called + " ended with exit code " + std::to_string(ended.exit_code));
  return parse_json(ended.out, "the answer of " + called, {.bytes = kLongestAnswer});
}

nlohmann::json OwnNode::ask_quietly(std::vector<std::string> words) {
  words.insert(words.end(), {"-o", "json"});
  const auto ended =
      run_command(nsactl_, words, Streams::kTakenQuietly, Interruption::kIgnored, *signals_);
  if (!ended || ended->exit_code != 0) return nullptr;
  return parse_json(ended->out, "nsactl", {.bytes = kLongestAnswer}).value_or(nullptr);
}

std::vector<std::string> OwnNode::live_runs() {
  std::vector<std::string> live;
  for (const auto& run : at(ask_quietly({"ls"}), "/items"))
    if (!is_over(at(run, "/state"))) live.push_back(run.value("id", ""));
  return live;
}

void OwnNode::end() {
  std::error_code error;
  if (!fs::exists(folder_ / "state", error)) return; // nothing has run here
  const auto do_quietly = [this](const std::vector<std::string>& words) {
    (void)run_command(nsactl_, words, Streams::kTakenQuietly, Interruption::kIgnored, *signals_);
  };
  std::vector<std::string> live = live_runs();
  for (const std::string& run : live)
    do_quietly({"cancel", run});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!live.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    live = live_runs();
  }
  do_quietly({"daemon", "stop"});
}

Status OwnNode::remove() {
  std::error_code error;
  for (const char* name : {"state", "data", "run", "config", "quickstart.toml", "summary.json"})
    if (fs::remove_all(folder_ / name, error); error)
      return fail(ErrorCode::kSystem,
                  "cannot remove " + (folder_ / name).string() + ": " + error.message(),
                  "look at who owns it: ls -ld " + (folder_ / name).string());
  fs::remove(folder_ / kMark, error);
  fs::remove(folder_, error); // the folder stays if it contains other files
  return {};
}

} // namespace nsa::demo
