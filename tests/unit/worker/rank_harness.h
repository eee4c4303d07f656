// Plays the shim: starts real nsa-worker processes with link socket, progress page and store
// socket, and receives their messages. A test can ask ranks to stop, and kill them. Every wait has
// a limit.
#pragma once

#include "common/base/unique_fd.h"
#include "common/progress/page.h"
#include "common/spec/run_spec.h"
#include "common/wire/messages.h"

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::test {

struct LaunchOptions {
  AttemptNumber attempt = 1;
  std::optional<std::filesystem::path> resume;
  bool by_hand = false;                           // true: no link and no page
  std::map<std::string, std::string> environment; // in addition to PATH
  std::string without_graphs = "";                // passed on if not empty
};

// The process of a rank, as its shim sees it.
class RankProcess {
public:
  RankProcess(Rank rank, progress::Page page, UniqueFd link, pid_t pid)
      : rank_(rank), page_(std::move(page)), link_(std::move(link)), pid_(pid) {}
  RankProcess(RankProcess&&) noexcept;
  ~RankProcess(); // kills the process if it still runs

  const progress::Page& page() const { return page_; }
  pid_t pid() const { return pid_; }
  const std::vector<wire::Message>& messages() const { return messages_; }

  // Reads what has arrived. Returns false once the link is closed.
  bool pump(int wait_ms);
  // Waits for a message of this type that `fits`, if given. Returns nothing after the limit.
  std::optional<wire::Message> wait_message(wire::MessageType type,
                                            std::function<bool(const wire::Message&)> fits = {},
                                            double limit_seconds = 120);
  void ask_to_stop(bool checkpoint);
  void ask_for_checkpoint();
  void kill();
  // Returns the exit code, or 256 + signal. After the limit kills the process and returns -1.
  int wait_exit(double limit_seconds = 120);

  template <class T> std::vector<T> all(wire::MessageType type) const {
    std::vector<T> bodies;
    for (const wire::Message& m : messages_)
      if (m.type == type)
        if (auto body = wire::body_as<T>(m.body)) bodies.push_back(*body);
    return bodies;
  }

private:
  void send(const std::string& bytes); // a rank that has just ended may not receive them
  Rank rank_;
  progress::Page page_;
  UniqueFd link_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
  wire::FrameDecoder decoder_;
  std::vector<wire::Message> messages_;
};

// The folder of a run, its spec, and its ranks.
class RunHarness {
public:
  explicit RunHarness(std::filesystem::path run_folder) : run_folder_(std::move(run_folder)) {}

  // Starts as many processes as spec.parallel.ranks says.
  std::vector<RankProcess> launch(const spec::RunSpec& spec, const LaunchOptions& options = {});
  const std::filesystem::path& folder() const { return run_folder_; }
  std::filesystem::path checkpoints() const { return run_folder_ / "checkpoints"; }

  // Training loss of each step, from metrics.jsonl. If a step is there twice, the later line
  // counts.
  std::map<uint64_t, double> losses() const;
  std::map<uint64_t, double> heldout_losses() const;
  std::vector<nlohmann::json> records(const std::string& kind) const; // of metrics.jsonl
  std::string log(AttemptNumber attempt, Rank rank) const;

private:
  std::map<uint64_t, double> values(const std::string& kind) const;
  std::filesystem::path run_folder_;
};

// Prepares a data set in `folder` from text of a fixed grammar, once per process.
std::filesystem::path prepare_text(const std::filesystem::path& folder);
spec::RunSpec tiny_run(const std::filesystem::path& dataset);

} // namespace nsa::test
