// nsa-bench daemon: measures how much deliberately slow requests delay the daemon's loop.
//
// For each request a new nsad supervises a run of two ranks and receives that request repeatedly
// for some seconds. nsad itself measures how late each tick of its loop was.
#include "bench/arguments/arguments.h"
#include "bench/daemon/node.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/text.h"

#include <cstdio>
#include <fcntl.h>
#include <functional>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace nsa;
using bench::Node;
namespace fs = std::filesystem;

// Sends one request; returns a description of the result for the table.
using Ask = std::function<Result<std::string>(const Node&)>;

struct Subject {
  const char* name;
  const char* what;
  std::function<Result<Ask>(const Node&)> make;
};

std::string counted(uint64_t bytes) {
  return format_bytes(bytes);
}

Ask submit_data(const fs::path& data) {
  return [data](const Node& node) -> Result<std::string> {
    NSA_TRY_ASSIGN(const auto answer, node.submit(node.run_file(data)));
    return "status " + std::to_string(answer.status);
  };
}

// Makes <folder>/data-set/dataset.json something that is not a regular file.
Result<Ask> planted(const Node& node, const std::function<int(const char* path)>& plant) {
  const fs::path data = node.folder() / "planted";
  NSA_TRY(make_folder(data));
  if (plant((data / "dataset.json").c_str()) != 0)
    return fail_errno("cannot make " + data.string());
  return submit_data(data);
}

// Makes a file as a shim leaves it after rotation: a hole, then some lines.
Status make_log(const fs::path& path, uint64_t hole, int64_t lines) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(hole)) != 0 ||
      ::lseek(fd.get(), 0, SEEK_END) < 0)
    return fail_errno("cannot make " + path.string());
  const std::string line = "2026-01-31T09:00:00.000000000Z stdout F " + std::string(66, 'x') + "\n";
  std::string block;
  for (int64_t i = 0; i < 10'000; ++i)
    block += line;
  for (int64_t i = 0; i < lines; i += 10'000)
    NSA_TRY(write_all(fd.get(), block.data(), block.size()));
  return {};
}

Ask read_stream(const std::string& target, uint64_t most) {
  return [target, most](const Node& node) -> Result<std::string> {
    NSA_TRY_ASSIGN(const uint64_t bytes, node.read(target, most));
    return counted(bytes);
  };
}

constexpr uint64_t kGibibyte = uint64_t{1} << 30;
constexpr uint64_t kAll = ~uint64_t{0};

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"idle", "no request",
       [](const Node&) -> Result<Ask> {
         return [](const Node&) -> Result<std::string> {
           std::this_thread::sleep_for(std::chrono::milliseconds(50));
           return "";
         };
       }},
      {"fifo", "submit: dataset.json is a FIFO",
       [](const Node& node) {
         return planted(node, [](const char* path) { return ::mkfifo(path, 0600); });
       }},
      {"zero", "submit: dataset.json is a link to /dev/zero",
       [](const Node& node) {
         return planted(node, [](const char* path) { return ::symlink("/dev/zero", path); });
       }},
      {"folder", "submit: dataset.json is a folder",
       [](const Node& node) {
         return planted(node, [](const char* path) { return ::mkdir(path, 0700); });
       }},
      {"keys", "submit: a run file of 300,000 unknown keys",
       [](const Node&) -> Result<Ask> {
         std::string toml = "schema = 1\n";
         for (int i = 0; i < 300'000; ++i)
           toml += "k" + std::to_string(i) + " = 1\n";
         return [toml](const Node& node) -> Result<std::string> {
           NSA_TRY_ASSIGN(const auto answer, node.submit(toml));
           return "status " + std::to_string(answer.status);
         };
       }},
      {"logs", "logs?tail=1000000 of a log of 1 GiB",
       [](const Node& node) -> Result<Ask> {
         NSA_TRY(make_log(node.logs() / "rank-0.log.1", kGibibyte - (128 << 20), 1'200'000));
         return read_stream("/v1/runs/" + node.run() + "/logs?rank=0&tail=1000000", kAll);
       }},
      {"endless", "logs?tail=1000000 of 1 GiB without a newline, 64 MiB of it read",
       [](const Node& node) -> Result<Ask> {
         NSA_TRY(make_log(node.logs() / "rank-1.log.1", kGibibyte, 0));
         return read_stream("/v1/runs/" + node.run() + "/logs?rank=1&tail=1000000", 64 << 20);
       }},
      {"events", "events?tail=100000",
       [](const Node&) -> Result<Ask> {
         return [](const Node& node) -> Result<std::string> {
           NSA_TRY_ASSIGN(const auto answer, node.ask("GET", "/v1/events?tail=100000"));
           return counted(answer.body.size());
         };
       }},
      {"queue", "submit: a run that waits behind 300 others",
       [](const Node& node) -> Result<Ask> {
         Ask submit = submit_data(node.folder() / "data");
         for (int i = 0; i < 300; ++i)
           NSA_TRY(submit(node));
         return submit;
       }},
      {"list", "every run with its whole summary", [](const Node&) -> Result<Ask> {
         return [](const Node& node) -> Result<std::string> {
           NSA_TRY_ASSIGN(const auto answer, node.ask("GET", "/v1/runs?all"));
           return counted(answer.body.size());
         };
       }}};
  return all;
}

Status measure(const Subject& subject, const fs::path& programs, int64_t seconds, bool json) {
  NSA_TRY_ASSIGN(const auto node, Node::start(programs));
  NSA_TRY_ASSIGN(const Ask ask, subject.make(*node));
  const uint64_t step = node->step(), memory = node->peak_memory();
  const MonotonicTime began = MonotonicTime::now();
  int64_t requests = 0;
  std::string came;
  do {
    NSA_TRY_ASSIGN(came, ask(*node));
    ++requests;
  } while (to_seconds(MonotonicTime::now() - began) < static_cast<double>(seconds));
  const double each = to_seconds(MonotonicTime::now() - began) / static_cast<double>(requests);
  NSA_TRY_ASSIGN(const auto status, node->get("/v1/daemon"));
  const auto& delay = status.at("loop_delay_seconds");
  const uint64_t peak = node->peak_memory(); // the kernel corrects its count, also downwards
  const uint64_t growth = peak > memory ? peak - memory : 0, steps = node->step() - step;
  if (json) {
    std::printf("%s\n", nlohmann::json{{"request", subject.name},
                                       {"requests", requests},
                                       {"request_seconds", each},
                                       {"came", came},
                                       {"delay_seconds", delay},
                                       {"memory_growth_bytes", growth},
                                       {"steps", steps}}
                            .dump()
                            .c_str());
  } else {
    std::printf("%-8s %6.1f %6.1f %6.1f %10.1f %8.3f %6llu  %-12s %s\n", subject.name,
                delay.value("p50", 0.0) * 1e3, delay.value("p99", 0.0) * 1e3,
                delay.value("max", 0.0) * 1e3, static_cast<double>(growth) / (1 << 20), each,
                static_cast<unsigned long long>(steps), came.c_str(), subject.what);
  }
  std::fflush(stdout);
  return {};
}

} // namespace

int main(int argc, char** argv) {
  int64_t seconds = 10;
  bool json = false;
  std::vector<std::string> names, chosen;
  for (const Subject& subject : subjects())
    names.emplace_back(subject.name);
  const bench::CommandLine command{
      "nsa-bench daemon",
      "How late the ticks of nsad's loop are while it is asked for what takes long, by its own "
      "measure.",
      "",
      {{"--seconds", "N", "how long each request is repeated; 10", bench::into(seconds)},
       {"--request", "LIST", "only these: " + join(names, ","), bench::into(chosen, names)},
       {"--json", "", "a JSON object a line, in the place of the table", bench::into(json)}},
      {"", "--request logs,fifo --json"}};
  (void)bench::read_or_exit(command, argc, argv);
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  if (!json)
    std::printf(
        "         tick late, ms: p50 p99 max; memory MiB; seconds a request; steps; answer\n");
  for (const Subject& subject : subjects()) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), subject.name) == chosen.end())
      continue;
    if (const auto done = measure(subject, programs, seconds, json); !done) {
      std::fprintf(stderr, "error: %s: %s\n", subject.name, done.error().what.c_str());
      return 1;
    }
  }
  return 0;
}
