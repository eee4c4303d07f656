// What the HTTP routes need from the daemon, as one interface: api (layer 40) is written against
// it, control (layer 41) implements it, tests fake it. All calls happen on the daemon's one thread
// and return at once; long answers come through subscriptions.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"
#include "common/wire/messages.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::api {

struct Caller { // from SO_PEERCRED
  uint32_t uid = 0;
  int32_t pid = 0;
  std::string user; // name, or the uid as text
};

// A refused run file carries all its problems; every other error has none.
struct SubmitFailure {
  Error error;
  std::vector<wire::ProblemView> problems;
};

struct EventQuery {
  std::string run; // empty: all
  int64_t after = 0;
  int limit = 1000;
  bool newest = false; // the last `limit`, still oldest first
};

struct LogQuery {
  std::string run;
  int attempt = 0; // 0: newest
  int rank = -1;   // -1: all
};
struct LogSource { // a file to read; the routes do the reading and following
  AttemptNumber attempt = 0;
  Rank rank = 0;
  std::string path;
  bool live = false; // still being written
};

// Keeps a callback registered while it lives.
class Subscription {
public:
  virtual ~Subscription() = default;
};

class Service {
public:
  virtual ~Service() = default;

  virtual tl::expected<wire::SubmitReply, SubmitFailure> submit(const wire::SubmitRequest& request,
                                                                const Caller& caller) = 0;
  virtual std::vector<wire::RunSummary> list_runs(bool all) = 0;
  // The same as JSON texts of wire::to_row(): what a long list needs, made when it was stored.
  virtual std::vector<std::string> list_rows(bool all) = 0;
  // `run`: an id, a unique prefix of one, a name, or "@last". kNotFound, or kConflict if ambiguous.
  virtual Result<RunId> find_run(const std::string& run) = 0;
  virtual Result<wire::RunDetail> run_detail(const RunId& run) = 0;
  virtual Result<std::vector<wire::EventView>> events(const EventQuery& query) = 0;
  // Of one attempt; none while the run has not started.
  virtual Result<std::vector<LogSource>> logs(const LogQuery& query) = 0;
  virtual Result<std::vector<wire::CheckpointView>> checkpoints(const RunId& run, bool verify) = 0;

  // What reading the files of these checkpoints has shown: remembered, and a damaged one reported.
  virtual Status note_verified(const RunId& run,
                               const std::vector<wire::CheckpointView>& checkpoints) = 0;

  virtual Status stop(const RunId& run, const Caller& caller) = 0;   // checkpoint first
  virtual Status cancel(const RunId& run, const Caller& caller) = 0; // kill now
  virtual tl::expected<wire::SubmitReply, SubmitFailure>
  resume(const RunId& run, const std::vector<std::string>& overrides, const Caller& caller) = 0;
  virtual Status remove(const RunId& run,
                        const Caller& caller) = 0; // ended runs only; deletes files
  virtual Status checkpoint_now(const RunId& run, const Caller& caller) = 0;

  // Lines of one run (or of all, with an empty id) as they happen, the current summary first. After
  // the run has ended a line of type "end" comes last.
  virtual std::unique_ptr<Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) = 0;

  // Facts for `nsactl daemon status` and /v1/version.
  virtual nlohmann::json daemon_status() = 0;
  // Leave (ranks go on under their shims).
  virtual void shut_down(const Caller& caller) = 0;
};

} // namespace nsa::api
