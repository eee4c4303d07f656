// What the HTTP routes need from the daemon, as two interfaces: Queries only look, Requests change.
// The libraries queries and requests implement them, tests fake them. All calls happen on the
// daemon's one thread and return at once. What needs a file that a caller, a rank or a data set
// owns takes a `done`: it is called once, later, on the same thread. Long answers come through
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

// Runs that a text means, newest first: one at least, more where a name or the beginning of an id
// fits several.
struct RunMatch {
  struct Owned {
    RunId id;
    int64_t uid = -1; // whose run it is; -1: not known
  };
  std::vector<Owned> runs;
  bool by_prefix = false;
};

struct AuditQuery {
  std::string run;            // empty: all
  std::optional<int64_t> uid; // only what this user asked for, or others of its runs
  int limit = 1000;           // the newest
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
};
struct EventPage { // oldest first
  std::vector<wire::EventView> events;
  int64_t next = 0; // `after` of the page behind it
  bool more = false;
};

// A part of a long answer: JSON texts, and whether there is more.
struct ListPage {
  std::vector<std::string> items;
  bool more = false;
};

struct RunQuery {
  bool all = false, rows = false; // with those that ended long ago; rows: wire::to_row()
  // The page behind this one, as RunPage::next gave it.
  int64_t submitted_before = INT64_MAX;
  std::string row_before;
  int64_t ended_before = 0; // ended runs on the pages so far
};
struct RunPage { // newest first
  ListPage list;
  RunQuery next;
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
  bool live = false;    // still being written
  FileOpener open = {}; // as whom; empty: as this process
};

// What everybody who may connect learns of another user's run: that it is there, whose it is and
// how far. Not what it is about, how well it does, or why it ended.
wire::RunSummary says_little(const wire::RunSummary& run);

// Keeps a callback registered while it lives.
class Subscription {
public:
  virtual ~Subscription() = default;
};

template <class T> using Done = std::function<void(Result<T>)>;
using SubmitDone = std::function<void(tl::expected<wire::SubmitReply, SubmitFailure>)>;

class Queries {
public:
  virtual ~Queries() = default;

  // Summaries, or rows of values. Of runs that the caller does not own it gets what says_little()
  // leaves. A page never takes long.
  virtual Result<RunPage> list(const RunQuery& query, const Caller& caller) = 0;
  virtual int64_t run_count() = 0; // stored, in all
  // `run`: an id, a prefix of one, a name, or "@last"; the last two mean the caller's own runs
  // first. kNotFound if it means none.
  virtual Result<RunMatch> find_run(const std::string& run, const Caller& caller) = 0;
  // What tells runs apart that one text means.
  virtual std::vector<wire::CandidateView> candidates(const RunMatch& match) = 0;
  virtual Result<wire::RunSummary> run_summary(const RunId& run) = 0;
  virtual void run_detail(const RunId& run, Done<wire::RunDetail> done) = 0;
  // At most `limit`, and fewer where they are large: a page never takes long.
  virtual Result<EventPage> events(const EventQuery& query) = 0;
  // The sequence number after which the last `count` events come.
  virtual Result<int64_t> events_before_last(const RunId& run, int64_t count) = 0;
  // Of one attempt; none while the run has not started.
  virtual Result<std::vector<LogSource>> logs(const LogQuery& query) = 0;
  // metrics.jsonl of the run, and as whom to open it; both may be read on another thread.
  struct MetricsSource {
    std::string path;
    FileOpener open;
  };
  virtual MetricsSource metrics_source(const RunId& run) = 0;
  // The resolved run file of an attempt; 0: of the newest.
  virtual void attempt_spec(const RunId& run, int attempt, Done<nlohmann::json> done) = 0;
  // `verify` reads every byte, remembers what that shows, and reports a damaged one as an event.
  virtual void checkpoints(const RunId& run, bool verify,
                           Done<std::vector<wire::CheckpointView>> done) = 0;
  virtual Result<std::vector<wire::AuditView>> audit(const AuditQuery& query) = 0;

  // Lines of one run (or of all, with an empty id) as they happen, the current summary first. After
  // the run has ended a line of type "end" comes last.
  virtual std::unique_ptr<Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) = 0;

  // Facts for `nsactl daemon status` and /v1/version.
  virtual nlohmann::json daemon_status() = 0;
};

// Each of these leaves a row in the audit, whatever comes of it.
class Requests {
public:
  virtual ~Requests() = default;

  // The routes have judged the caller already, and refuse() what it may not.
  virtual void refuse(const Caller& caller, std::string_view verb, const std::string& run,
                      int64_t owner, const Error& why) = 0;
  virtual void submit(wire::SubmitRequest request, const Caller& caller, SubmitDone done) = 0;
  virtual Status stop(const RunId& run, const Caller& caller) = 0;   // checkpoint first
  virtual Status cancel(const RunId& run, const Caller& caller) = 0; // kill now
  virtual void resume(const RunId& run, wire::ResumeRequest request, const Caller& caller,
                      SubmitDone done) = 0;
  // Another name, note or tags, whatever the run's state.
  virtual Status set(const RunId& run, const wire::SetRequest& request, const Caller& caller) = 0;
  virtual Status remove(const RunId& run,
                        const Caller& caller) = 0; // ended runs only; deletes files
  virtual Status checkpoint_now(const RunId& run, const Caller& caller) = 0;
  // Leave (ranks go on under their shims).
  virtual void shut_down(const Caller& caller) = 0;
};

} // namespace nsa::api
