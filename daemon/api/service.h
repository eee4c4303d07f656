// What the HTTP routes need from the daemon, as two interfaces: Queries only read, Requests change.
// The libraries queries and requests implement them, and tests fake them. All calls happen on the
// daemon's one thread and return at once. A call that must read a file of a caller, a rank or a
// data set takes a `done`. It is called once, later, on the same thread. Long answers come through
// subscriptions.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/wire/api_types.h"
#include "common/wire/messages.h"
#include "daemon/api/access.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::api {

// The runs that a text matches, newest first. There is at least one, and more if a name or the
// prefix of an id fits several.
struct RunMatch {
  struct Owned {
    RunId id;
    int64_t uid = -1; // uid of the run's owner; -1 if unknown
  };
  std::vector<Owned> runs;
  bool by_prefix = false;
};

struct AuditQuery {
  std::string run;            // empty means all
  std::optional<int64_t> uid; // only requests of this user, or of others about this user's runs
  int limit = 1000;           // number of newest rows
};

// A refused run file brings all its problems. Other errors bring none.
struct SubmitFailure {
  Error error;
  std::vector<wire::ProblemView> problems;
};

struct EventQuery {
  std::string run; // empty means all
  int64_t after = 0;
  int limit = 1000;
};
struct EventPage { // oldest first
  std::vector<wire::EventView> events;
  int64_t next = 0; // value of `after` for the next page
  bool more = false;
};

// A part of a long answer: JSON texts, and whether more follow.
struct ListPage {
  std::vector<std::string> items;
  bool more = false;
};

struct RunQuery {
  // `all` also lists runs that ended long ago. `rows` lists them as wire::to_row() writes them.
  bool all = false, rows = false;
  // These members select the next page, with the values of RunPage::next.
  int64_t submitted_before = INT64_MAX;
  std::string row_before;
  int64_t ended_before = 0; // number of ended runs on the pages so far
};
struct RunPage { // newest first
  ListPage list;
  RunQuery next;
};

struct LogQuery {
  std::string run;
  int attempt = 0; // 0 means the newest
  int rank = -1;   // -1 means all
};
struct LogSource { // a file that the routes read and follow
  AttemptNumber attempt = 0;
  Rank rank = 0;
  std::string path;
  bool live = false;    // it is still being written
  FileOpener open = {}; // opens the file as the right user; empty: as this process
};

// Keeps what every caller may learn of another user's run: that it exists, who owns it and how far
// it is. Removes what it computes, its metrics, and why it ended.
wire::RunSummary says_little(const wire::RunSummary& run);

// Keeps a callback registered for as long as it lives.
class Subscription {
public:
  virtual ~Subscription() = default;
};

template <class T> using Done = std::function<void(Result<T>)>;
using SubmitDone = std::function<void(tl::expected<wire::SubmitReply, SubmitFailure>)>;

class Queries {
public:
  virtual ~Queries() = default;

  // Lists summaries, or rows of values. Runs that the caller does not own are reduced by
  // says_little(). A page never takes long.
  virtual Result<RunPage> list(const RunQuery& query, const Caller& caller) = 0;
  virtual int64_t run_count() = 0; // number of all stored runs
  // `run` is an id, a prefix of one, a name, or "@last". A name or "@last" prefers the caller's own
  // runs. Error: kNotFound if no run matches.
  virtual Result<RunMatch> find_run(const std::string& run, const Caller& caller) = 0;
  // Describes what distinguishes the runs that one text matches.
  virtual std::vector<wire::CandidateView> candidates(const RunMatch& match) = 0;
  virtual Result<wire::RunSummary> run_summary(const RunId& run) = 0;
  virtual void run_detail(const RunId& run, Done<wire::RunDetail> done) = 0;
  // Returns at most `limit` events, and fewer if they are large, so that a page never takes long.
  virtual Result<EventPage> events(const EventQuery& query) = 0;
  // Returns the sequence number that precedes the last `count` events.
  virtual Result<int64_t> events_before_last(const RunId& run, int64_t count) = 0;
  // Returns the logs of one attempt; none while the run has not started.
  virtual Result<std::vector<LogSource>> logs(const LogQuery& query) = 0;
  // Path of the run's metrics.jsonl, and how to open it. Another thread may use both.
  struct MetricsSource {
    std::string path;
    FileOpener open;
  };
  virtual MetricsSource metrics_source(const RunId& run) = 0;
  // Reads the resolved run file of an attempt; 0 selects the newest attempt.
  virtual void attempt_spec(const RunId& run, int attempt, Done<nlohmann::json> done) = 0;
  // `verify` reads every byte, stores the result, and reports a damaged checkpoint as an event.
  virtual void checkpoints(const RunId& run, bool verify,
                           Done<std::vector<wire::CheckpointView>> done) = 0;
  virtual Result<std::vector<wire::AuditView>> audit(const AuditQuery& query) = 0;

  // Calls `line` with each line of one run, or of all runs if the id is empty. The current summary
  // comes first. After the run has ended, a line of type "end" comes last.
  virtual std::unique_ptr<Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) = 0;

  // Returns facts for `nsactl daemon status` and /v1/version.
  virtual nlohmann::json daemon_status() = 0;
};

// Each of these calls is recorded in the audit, whether it succeeds or not.
class Requests {
public:
  virtual ~Requests() = default;

  // The routes have checked the caller. They call refuse() for what the caller may not do.
  virtual void refuse(const Caller& caller, std::string_view verb, const std::string& run,
                      int64_t owner, const Error& why) = 0;
  virtual void submit(wire::SubmitRequest request, const Caller& caller, SubmitDone done) = 0;
  virtual Status stop(const RunId& run, const Caller& caller) = 0;   // writes a checkpoint first
  virtual Status cancel(const RunId& run, const Caller& caller) = 0; // kills at once
  virtual void resume(const RunId& run, wire::ResumeRequest request, const Caller& caller,
                      SubmitDone done) = 0;
  // Changes the name, note or tags, in any state of the run.
  virtual Status set(const RunId& run, const wire::SetRequest& request, const Caller& caller) = 0;
  virtual Status remove(const RunId& run,
                        const Caller& caller) = 0; // ended runs only; deletes files
  virtual Status checkpoint_now(const RunId& run, const Caller& caller) = 0;
  // Stops nsad. Ranks continue under their shims.
  virtual void shut_down(const Caller& caller) = 0;
};

} // namespace nsa::api
