#include "bench/daemon/node.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/dataset/prepare.h"
#include "common/wire/api_types.h"

#include <cstdlib>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace nsa::bench {

namespace {

namespace fs = std::filesystem;
constexpr Duration kAnswerLimit = std::chrono::seconds(120);
constexpr Duration kStartLimit = std::chrono::seconds(60); // only a broken program takes this long
constexpr Duration kLook = std::chrono::milliseconds(20);

Status prepare_data(const fs::path& folder) {
  std::string text;
  while (text.size() < (200 << 10))
    text += "A daemon that answers must not forget to look after its ranks.\n\n";
  NSA_TRY(write_file_atomic(folder / "text.txt", text));
  dataset::PrepareOptions options;
  options.inputs = {folder / "text.txt"};
  options.output = folder / "data";
  options.tokenizer = dataset::TokenizerKind::kBytes;
  options.documents = dataset::DocumentUnit::kParagraph;
  if (auto made = dataset::prepare(options); !made) return fail(std::move(made.error()));
  return {};
}

template <class Condition> bool wait_until(Condition condition) {
  const MonotonicTime end = MonotonicTime::now() + kStartLimit;
  while (!condition()) {
    if (MonotonicTime::now() > end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

} // namespace

Result<std::unique_ptr<Node>> Node::start(const fs::path& programs) {
  std::unique_ptr<Node> node(new Node);
  std::string pattern = fs::temp_directory_path() / "nsa-bench-XXXXXX";
  if (!::mkdtemp(pattern.data())) return fail_errno("cannot make a temporary folder");
  node->folder_ = pattern;
  NSA_TRY(node->begin(programs));
  return node;
}

Status Node::begin(const fs::path& programs) {
  socket_ = folder_ / "nsad.sock";
  const fs::path worker = programs / "nsa-fake-worker";
  if (::access(worker.c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, worker.string() + " is not there",
                "build it: ninja nsa-fake-worker");
  NSA_TRY(prepare_data(folder_));
  NSA_TRY(write_file_atomic(folder_ / "nsad.toml",
                            "schema = 1\n[metrics]\nenabled = false\n[resources]\ncpu_slots = 2\n"
                            "gpus = \"none\"\n[supervision]\nrestart_daemon = false\n"
                            "[programs]\nworker = \"" +
                                worker.string() +
                                "\"\nworker_arguments = [\"--fake\", \"step_ms=10\"]\n"));
  const std::vector<std::string> words = {(programs / "nsad").string(),
                                          "--state-folder",
                                          (folder_ / "state").string(),
                                          "--socket",
                                          socket_,
                                          "--config",
                                          (folder_ / "nsad.toml").string(),
                                          "--log",
                                          (folder_ / "nsad.log").string()};
  std::vector<char*> arguments;
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (const int error =
          ::posix_spawn(&daemon_, arguments[0], nullptr, nullptr, arguments.data(), environ);
      error != 0)
    return fail(ErrorCode::kSystem, "cannot start " + words[0] + ": " + std::strerror(error));
  if (!wait_until([this] { return get("/v1/version").has_value(); }))
    return fail(ErrorCode::kUnavailable, "nsad does not answer: see " + words.back());
  NSA_TRY_ASSIGN(const auto answer, submit(run_file(folder_ / "data")));
  if (answer.status != 200) return fail(ErrorCode::kInternal, "the run is refused: " + answer.body);
  NSA_TRY_ASSIGN(const auto json, parse_json(answer.body, "nsad's answer"));
  run_ = json.value("id", "");
  NSA_TRY_ASSIGN(const auto detail, get("/v1/runs/" + run_));
  run_folder_ = detail.value("run_folder", "");
  if (!wait_until([this] { return step() > 0; }))
    return fail(ErrorCode::kUnavailable, "the run does not start");
  return {};
}

Node::~Node() {
  if (!run_.empty()) {
    // Queued runs are cancelled first, so that none of them starts.
    if (const auto runs = get("/v1/runs?all"); runs && runs->contains("items"))
      for (const auto& run : runs->at("items"))
        if (run.value("state", "") == name_of(wire::RunState::kQueued))
          (void)ask("POST", "/v1/runs/" + run.value("id", "") + "/cancel");
    (void)ask("POST", "/v1/runs/" + run_ + "/cancel");
    (void)wait_until([this] {
      const auto status = get("/v1/daemon");
      return !status || status->value("runs", 0) == 0;
    });
  }
  if (daemon_ > 0) {
    (void)ask("POST", "/v1/daemon/stop");
    const bool ended = wait_until([this] { return ::waitpid(daemon_, nullptr, WNOHANG) != 0; });
    if (!ended && ::kill(daemon_, SIGKILL) == 0) ::waitpid(daemon_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string Node::run_file(const fs::path& data) const {
  return "schema = 1\n[run]\nname = \"bench\"\n[data]\npath = \"" + data.string() +
         "\"\n[train]\nsteps = 10000000\nsequence_length = 128\n[parallel]\nranks = 2\n"
         "device = \"cpu\"\n[eval]\ninterval_steps = 0\nat_end = false\n";
}

Result<net::ClientResponse> Node::ask(const std::string& method, const std::string& target,
                                      const std::string& body) const {
  NSA_TRY_ASSIGN(auto client, net::HttpClient::connect_unix(socket_));
  return client.send({method, target, {}, body}, kAnswerLimit);
}

Result<nlohmann::json> Node::get(const std::string& target) const {
  NSA_TRY_ASSIGN(const auto answer, ask("GET", target));
  NSA_TRY_ASSIGN(auto json, parse_json(answer.body, "nsad's answer"));
  if (answer.status != 200 || !json.is_object())
    return fail(ErrorCode::kInternal, target + " gave " + std::to_string(answer.status));
  return json;
}

Result<uint64_t> Node::read(const std::string& target, uint64_t most) const {
  NSA_TRY_ASSIGN(auto client, net::HttpClient::connect_unix(socket_));
  uint64_t bytes = 0;
  net::LineReader reader;
  reader.line = [&](std::string_view line) { return (bytes += line.size() + 1) < most; };
  NSA_TRY_ASSIGN(const auto end,
                 client.send_streaming({"GET", target, {}, ""}, kAnswerLimit, reader));
  if (end.end == net::StreamEnd::kEnded && end.response.status != 200)
    return fail(ErrorCode::kInternal, target + " gave " + std::to_string(end.response.status));
  return bytes;
}

Result<net::ClientResponse> Node::submit(const std::string& toml) const {
  wire::SubmitRequest request;
  request.toml = toml;
  request.file_name = "bench.toml";
  request.folder = folder_.string();
  return ask("POST", "/v1/runs", nlohmann::json(request).dump());
}

uint64_t Node::step() const {
  const auto detail = get("/v1/runs/" + run_);
  if (!detail) return 0;
  return detail->value(nlohmann::json::json_pointer("/summary/step"), uint64_t{0});
}

uint64_t Node::peak_memory() const {
  const auto status = read_file("/proc/" + std::to_string(daemon_) + "/status", 1 << 16);
  const size_t at = status ? status->find("VmHWM:") : std::string::npos;
  return at == std::string::npos ? 0 : std::strtoull(status->c_str() + at + 6, nullptr, 10) << 10;
}

} // namespace nsa::bench
