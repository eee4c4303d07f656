#include "tests/unit/worker/rank_harness.h"
#include "tests/support/test_paths.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/local_socket.h"
#include "common/dataset/prepare.h"
#include "common/spec/spec_json.h"
#include "common/wire/launch_plan.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::test {

namespace fs = std::filesystem;

RankProcess::RankProcess(RankProcess&& other) noexcept
    : rank_(other.rank_), page_(std::move(other.page_)), link_(std::move(other.link_)),
      pid_(std::exchange(other.pid_, -1)), exit_(other.exit_), decoder_(std::move(other.decoder_)),
      messages_(std::move(other.messages_)) {}

RankProcess::~RankProcess() {
  if (pid_ > 0 && !exit_) {
    kill();
    wait_exit();
  }
}

bool RankProcess::pump(int wait_ms) {
  if (!link_) return false;
  pollfd p{link_.get(), POLLIN, 0};
  if (::poll(&p, 1, wait_ms) <= 0) return true;
  char chunk[65536];
  const ssize_t got = ::recv(link_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  decoder_.feed({chunk, static_cast<size_t>(got)});
  while (true) {
    auto frame = decoder_.next();
    if (!frame) {
      ADD_FAILURE() << "rank " << rank_ << " sends garbage: " << frame.error().what;
      return false;
    }
    if (!*frame) return true;
    auto message = wire::decode_message(**frame);
    EXPECT_TRUE(message);
    if (message) messages_.push_back(std::move(*message));
  }
}

std::optional<wire::Message>
RankProcess::wait_message(wire::MessageType type, std::function<bool(const wire::Message&)> fits,
                          double limit_seconds) {
  const MonotonicTime end = MonotonicTime::now() + from_seconds(limit_seconds);
  size_t looked_at = 0;
  while (true) {
    for (; looked_at < messages_.size(); ++looked_at)
      if (messages_[looked_at].type == type && (!fits || fits(messages_[looked_at])))
        return messages_[looked_at];
    if (!(MonotonicTime::now() < end)) return std::nullopt;
    if (!pump(50) && looked_at == messages_.size()) return std::nullopt;
  }
}

void RankProcess::send(const std::string& bytes) {
  const ssize_t sent = ::send(link_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(sent == ssize_t(bytes.size()) ||
              (sent < 0 && (errno == EPIPE || errno == ECONNRESET)));
}

void RankProcess::ask_to_stop(bool checkpoint) {
  send(*wire::encode(wire::MessageType::kStopRequest, wire::StopRequest{checkpoint}));
}

void RankProcess::ask_for_checkpoint() {
  send(*wire::encode(wire::MessageType::kCheckpointRequest, wire::CheckpointRequest{}));
}

void RankProcess::kill() {
  if (pid_ > 0 && !exit_) ::kill(pid_, SIGKILL);
}

int RankProcess::wait_exit(double limit_seconds) {
  const MonotonicTime end = MonotonicTime::now() + from_seconds(limit_seconds);
  while (!exit_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
      break;
    }
    if (!(MonotonicTime::now() < end)) {
      ADD_FAILURE() << "rank " << rank_ << " still runs after " << limit_seconds << " s";
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      exit_ = -1;
      break;
    }
    if (!pump(20)) ::usleep(2000);
  }
  while (pump(0)) { // reads the last messages
    pollfd p{link_.get(), POLLIN, 0};
    if (::poll(&p, 1, 0) <= 0) break;
  }
  return *exit_;
}

namespace {

// Runs in the child: moves descriptors to their numbers and executes the worker.
[[noreturn]] void become_worker(const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment, int link,
                                int page, int store, const std::string& log_path) {
  const int log = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(log, 1);
  ::dup2(log, 2);
  // First moves the descriptors away, so that no target number is still in use as a source.
  const int moved[3] = {link < 0 ? -1 : ::fcntl(link, F_DUPFD, 50),
                        page < 0 ? -1 : ::fcntl(page, F_DUPFD, 50),
                        store < 0 ? -1 : ::fcntl(store, F_DUPFD, 50)};
  const int targets[3] = {wire::kRankLinkFd, wire::kRankPageFd, wire::kRankStoreFd};
  for (int i = 0; i < 3; ++i) {
    if (moved[i] >= 0)
      ::dup2(moved[i], targets[i]);
    else
      ::close(targets[i]);
  }
  for (int fd = 6; fd < 256; ++fd)
    ::close(fd);
  std::vector<char*> argv, envp;
  for (const std::string& a : arguments)
    argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> pairs = {"PATH=/usr/bin:/bin"};
  for (const auto& [name, value] : environment)
    pairs.push_back(name + "=" + value);
  for (const std::string& p : pairs)
    envp.push_back(const_cast<char*>(p.c_str()));
  envp.push_back(nullptr);
  ::execve(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

} // namespace

std::vector<RankProcess> RunHarness::launch(const spec::RunSpec& spec,
                                            const LaunchOptions& options) {
  const fs::path attempt_folder = run_folder_ / ("attempt-" + std::to_string(options.attempt));
  fs::create_directories(attempt_folder);
  EXPECT_TRUE(write_file_atomic(attempt_folder / "spec.json", spec::to_json(spec).dump(2)));
  const fs::path place = attempt_folder / "rendezvous";
  EXPECT_TRUE(make_folder(place, 0700));
  const auto listener = listen_in_folder(place, wire::kStoreSocketName, SOCK_SEQPACKET, 64);
  EXPECT_TRUE(listener) << listener.error().what;
  std::vector<RankProcess> ranks;
  for (Rank r = 0; r < spec.parallel.ranks; ++r) {
    auto page = progress::Page::create(r, options.attempt);
    int pair[2] = {-1, -1};
    if (!options.by_hand) {
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    }
    std::vector<std::string> arguments = {test::program_folder() + "/nsa-worker",
                                          "--spec",
                                          (attempt_folder / "spec.json").string(),
                                          "--run-folder",
                                          run_folder_.string(),
                                          "--attempt-folder",
                                          attempt_folder.string(),
                                          "--run-id",
                                          "abcde",
                                          "--attempt",
                                          std::to_string(options.attempt),
                                          "--rank",
                                          std::to_string(r),
                                          "--world-size",
                                          std::to_string(spec.parallel.ranks),
                                          "--rendezvous",
                                          "unix:" + place.string()};
    if (options.resume) {
      arguments.push_back("--resume");
      arguments.push_back(options.resume->string());
    }
    if (!options.without_graphs.empty()) {
      arguments.push_back("--without-graphs");
      arguments.push_back(options.without_graphs);
    }
    const std::string log_path = (attempt_folder / ("rank-" + std::to_string(r) + ".log")).string();
    const pid_t pid = ::fork();
    if (pid == 0)
      become_worker(arguments, options.environment, pair[1], options.by_hand ? -1 : page->fd(),
                    r == 0 ? listener->get() : -1, log_path);
    if (pair[1] >= 0) ::close(pair[1]);
    ranks.emplace_back(r, std::move(*page), UniqueFd(pair[0]), pid);
  }
  return ranks;
}

std::vector<nlohmann::json> RunHarness::records(const std::string& kind) const {
  std::vector<nlohmann::json> found;
  std::ifstream in(run_folder_ / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_discarded() && j.value("kind", "") == kind) found.push_back(std::move(j));
  }
  return found;
}

std::map<uint64_t, double> RunHarness::values(const std::string& kind) const {
  std::map<uint64_t, double> by_step;
  for (const nlohmann::json& j : records(kind))
    by_step[j["step"].get<uint64_t>()] =
        j["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN() : j["loss"].get<double>();
  return by_step;
}

std::map<uint64_t, double> RunHarness::losses() const {
  return values("step");
}

std::map<uint64_t, double> RunHarness::heldout_losses() const {
  return values("evaluation");
}

std::string RunHarness::log(AttemptNumber attempt, Rank rank) const {
  const auto text = read_file(run_folder_ / ("attempt-" + std::to_string(attempt)) /
                              ("rank-" + std::to_string(rank) + ".log"));
  return text ? *text : "";
}

fs::path prepare_text(const fs::path& folder) {
  // Sentences of a small grammar. They are so predictable that a tiny model learns within 30 steps.
  const std::vector<std::string> who = {"the cat", "a dog", "the old man", "my sister"};
  const std::vector<std::string> does = {" sees ", " likes ", " follows ", " finds "};
  const std::vector<std::string> what = {"the river", "a red house", "the moon", "some bread"};
  std::mt19937 random(11);
  fs::create_directories(folder);
  std::ofstream out(folder / "text.txt");
  for (int line = 0; line < 3000; ++line) {
    out << who[random() % 4] << does[random() % 4] << what[random() % 4] << ".\n";
    if (line % 20 == 19) out << "\n";
  }
  out.close();
  dataset::PrepareOptions options;
  options.inputs = {folder / "text.txt"};
  options.output = folder / "dataset";
  options.tokenizer = dataset::TokenizerKind::kBytes;
  options.documents = dataset::DocumentUnit::kParagraph;
  options.heldout_fraction = 0.1;
  options.threads = 1;
  auto result = dataset::prepare(options);
  EXPECT_TRUE(result) << result.error().what;
  return options.output;
}

spec::RunSpec tiny_run(const fs::path& dataset) {
  spec::RunSpec s;
  s.model.vocabulary = 320;
  s.model.dimension = 32;
  s.model.layers = 2;
  s.model.heads = 4;
  s.model.kv_groups = 2;
  s.model.head_dimension = 8;
  s.nsa.compression_block = 8;
  s.nsa.compression_stride = 4;
  s.nsa.selection_block = 16;
  s.nsa.selected_blocks = 4;
  s.nsa.window = 32;
  s.data.path = dataset.string();
  s.eval.batches = 4;
  s.train.steps = 12;
  s.train.sequence_length = 128;
  s.train.micro_batch = 2;
  s.train.learning_rate = 3e-3;
  s.train.warmup_steps = 3;
  s.parallel.ranks = 2;
  s.parallel.device = spec::Device::kCpu;
  s.parallel.collective_timeout_seconds = 60;
  return s;
}

} // namespace nsa::test
