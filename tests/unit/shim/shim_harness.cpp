#include "tests/unit/shim/shim_harness.h"
#include "tests/support/test_paths.h"

#include "common/base/file.h"
#include "common/wire/packed.h"
#include "daemon/proc/procfs.h"
#include "daemon/shim/cri.h"

#include <csignal>
#include <fstream>
#include <poll.h>
#include <random>
#include <thread>
#include <unistd.h>

namespace nsa::shim::test {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

bool eventually(const std::function<bool()>& condition, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  while (!condition()) {
    if (MonotonicTime::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

Attempt::Attempt(int ranks, const std::string& below) {
  std::string name = (fs::temp_directory_path() / "nsa-shim-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  root_ = folder_ = name;
  if (!below.empty()) folder_ /= below;
  fs::create_directories(folder_);
  std::random_device random;
  plan.run_id = "abcde";
  plan.token = std::to_string(random()) + "-" + std::to_string(random());
  plan.run_folder = (folder_ / "run").string();
  plan.attempt_folder = folder_.string();
  options.program = nsa::test::program_folder() + "/nsa-shim";
  options.cgroup_root = "none";
  for (Rank r = 0; r < ranks; ++r) {
    wire::RankLaunch launch;
    launch.rank = r;
    launch.arguments = {nsa::test::program_folder() + "/nsa-fake-worker",
                        "--run-folder",
                        plan.run_folder,
                        "--attempt-folder",
                        plan.attempt_folder,
                        "--run-id",
                        plan.run_id,
                        "--attempt",
                        "1",
                        "--rank",
                        std::to_string(r),
                        "--world-size",
                        std::to_string(ranks)};
    launch.environment = {{"RANK", std::to_string(r)}, {"WORLD_SIZE", std::to_string(ranks)}};
    launch.log_path = (folder_ / "logs" / ("rank-" + std::to_string(r) + ".log")).string();
    plan.ranks.push_back(std::move(launch));
  }
}

Attempt::~Attempt() {
  if (shim_ && !shim_ended()) {
    // The ranks die with the shim. Processes that ranks left behind do not, and none may remain.
    [[maybe_unused]] const auto sent = proc::send_signal(shim_->pidfd.get(), SIGKILL);
    eventually([&] { return shim_ended(); });
  }
  if (shim_) [[maybe_unused]]
    const auto status = proc::wait_child(shim_->pidfd.get());
  if (::testing::Test::HasFailure()) {
    const auto log = read_file(folder_ / "shim.log");
    if (log) std::fprintf(stderr, "--- shim.log\n%s---\n", log->c_str());
  }
  std::error_code error;
  fs::remove_all(root_, error);
}

void Attempt::fake(Rank rank, const std::vector<std::string>& arguments) {
  auto& all = plan.ranks.at(static_cast<size_t>(rank)).arguments;
  all.push_back("--fake");
  all.insert(all.end(), arguments.begin(), arguments.end());
}

void Attempt::fake_all(const std::vector<std::string>& arguments) {
  for (const wire::RankLaunch& launch : plan.ranks)
    fake(launch.rank, arguments);
}

void Attempt::start() {
  auto started = start_shim(plan, options);
  ASSERT_TRUE(started) << started.error().what;
  shim_ = std::move(*started);
}

std::string Attempt::log_text(Rank rank) const {
  const std::string path = plan.ranks.at(static_cast<size_t>(rank)).log_path;
  std::string all;
  for (int i = plan.log_files; i >= 0; --i)
    if (const auto part = read_file(i == 0 ? path : path + "." + std::to_string(i))) all += *part;
  std::string text;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('\n', at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a log file ends in the middle of a line";
      break;
    }
    const std::string line = all.substr(at, end - at);
    if (line.size() >= kCriPrefixBytes && line.substr(31, 6) == "stdout") {
      text += line.substr(kCriPrefixBytes);
      if (line[38] == 'F') text += '\n';
    }
    at = end + 1;
  }
  return text;
}

Daemon::Daemon(const Attempt& attempt, uint64_t acknowledged) {
  const bool connected = eventually([&] {
    auto socket = connect_socket(attempt.plan.attempt_folder);
    if (!socket) return false;
    auto client = ShimClient::greet(std::move(*socket), attempt.plan.token, acknowledged);
    if (client) client_ = std::move(*client);
    return client.has_value();
  });
  EXPECT_TRUE(connected) << "the shim does not listen";
}

bool Daemon::hear_until(const std::function<bool(const Daemon&)>& condition, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  while (!condition(*this)) {
    if (closed_ || MonotonicTime::now() > end) return false;
    pollfd p{client_->fd(), static_cast<short>(POLLIN | (client_->wants_write() ? POLLOUT : 0)), 0};
    ::poll(&p, 1, 50);
    if ((p.revents & POLLOUT) != 0) {
      EXPECT_TRUE(client_->on_writable());
    }
    auto received = client_->on_readable();
    if (!received) {
      ADD_FAILURE() << received.error().what;
      return false;
    }
    for (auto& message : received->messages)
      heard_.push_back(std::move(message));
    for (auto& page : client_->take_pages())
      pages_.push_back(std::move(page));
    closed_ = received->closed;
  }
  return true;
}

uint64_t Daemon::last_sequence() const {
  return heard_.empty() ? 0 : heard_.back().sequence;
}

wire::ShimHello Daemon::hello() const {
  EXPECT_FALSE(heard_.empty());
  return heard_.empty() ? wire::ShimHello{} : heard_.front().body.get<wire::ShimHello>();
}

std::vector<wire::RankMessage> Daemon::rank_messages(wire::MessageType type) const {
  std::vector<wire::RankMessage> found;
  for (const auto& m : heard_) {
    if (m.type == wire::MessageType::kRankMessage &&
        m.body.value("type", 0) == static_cast<int>(type))
      found.push_back(m.body.get<wire::RankMessage>());
    if (m.type != wire::MessageType::kPackedStep || type != wire::MessageType::kRankStep) continue;
    const auto step = wire::unpack<wire::RankStep>(m.packed);
    EXPECT_TRUE(step) << "a step report that cannot be unpacked";
    if (step) found.push_back({step->rank, static_cast<uint8_t>(type), *step});
  }
  return found;
}

void use_shell(Attempt& attempt, Rank rank, const std::string& script) {
  auto& launch = attempt.plan.ranks.at(static_cast<size_t>(rank));
  launch.arguments = {"/bin/sh", "-c", script};
  launch.environment = {{"PATH", "/usr/bin:/bin"}};
}

char state_of(pid_t pid) {
  const auto stat = proc::read_stat(pid);
  return stat ? stat->state : '-';
}

bool lives(pid_t pid) {
  return std::string_view("-ZX").find(state_of(pid)) == std::string_view::npos;
}

pid_t started_pid(Daemon& nsad, Rank rank) {
  const auto started = [rank](const Daemon& d) {
    return d.find<wire::RankStarted>(wire::MessageType::kRankStarted, rank);
  };
  if (!nsad.hear_until([&](const Daemon& d) { return started(d).has_value(); })) return -1;
  return static_cast<pid_t>(started(nsad)->pid);
}

void release_and_wait(Attempt& attempt, Daemon& daemon) {
  ASSERT_TRUE(daemon.client().release());
  EXPECT_TRUE(eventually([&] { return attempt.shim_ended(); }));
}

} // namespace nsa::shim::test
