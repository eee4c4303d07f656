// A stand-in for the shim: starts real nsa-worker processes with link socket, progress page and
// store socket, collects what they say, and lets a test ask, stop and kill them. Every wait is
// bounded.
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
  bool by_hand = false;                           // no link, no page
  std::map<std::string, std::string> environment; // besides PATH
  std::string without_graphs = "";                // handed over where not empty
};

// One rank's process as its shim sees it.
class RankProcess {
public:
  RankProcess(Rank rank, progress::Page page, UniqueFd link, pid_t pid)
      : rank_(rank), page_(std::move(page)), link_(std::move(link)), pid_(pid) {}
  RankProcess(RankProcess&&) noexcept;
  ~RankProcess(); // kills what still runs

  const progress::Page& page() const { return page_; }
  pid_t pid() const { return pid_; }
  const std::vector<wire::Message>& messages() const { return messages_; }

  // Reads what has come; false once the link is closed.
  bool pump(int wait_ms);
  // Until a message of this type (and, if given, content) is there; nothing after the limit.
  std::optional<wire::Message> wait_message(wire::MessageType type,
                                            std::function<bool(const wire::Message&)> fits = {},
                                            double limit_seconds = 120);
  void ask_to_stop(bool checkpoint);
  void ask_for_checkpoint();
  void kill();
  // Exit code, or 256 + signal. Kills and returns -1 past the limit.
  int wait_exit(double limit_seconds = 120);

  template <class T> std::vector<T> all(wire::MessageType type) const {
    std::vector<T> bodies;
    for (const wire::Message& m : messages_)
      if (m.type == type)
        if (auto body = wire::body_as<T>(m.body)) bodies.push_back(*body);
    return bodies;
  }

private:
  void send(const std::string& bytes); // a rank that has just ended need not hear it
  Rank rank_;
  progress::Page page_;
  UniqueFd link_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
  wire::FrameDecoder decoder_;
  std::vector<wire::Message> messages_;
};

// A run's folder, its spec, and its ranks.
class RunHarness {
public:
  explicit RunHarness(std::filesystem::path run_folder) : run_folder_(std::move(run_folder)) {}

  // spec.parallel.ranks processes.
  std::vector<RankProcess> launch(const spec::RunSpec& spec, const LaunchOptions& options = {});
  const std::filesystem::path& folder() const { return run_folder_; }
  std::filesystem::path checkpoints() const { return run_folder_ / "checkpoints"; }

  // Training loss by step from metrics.jsonl; of a step that is there twice, the later line.
  std::map<uint64_t, double> losses() const;
  std::map<uint64_t, double> heldout_losses() const;
  std::vector<nlohmann::json> records(const std::string& kind) const; // of metrics.jsonl
  std::string log(AttemptNumber attempt, Rank rank) const;

private:
  std::map<uint64_t, double> values(const std::string& kind) const;
  std::filesystem::path run_folder_;
};

// A small model on text made from a fixed grammar, prepared once a process into `folder`.
std::filesystem::path prepare_text(const std::filesystem::path& folder);
spec::RunSpec tiny_run(const std::filesystem::path& dataset);

} // namespace nsa::test
