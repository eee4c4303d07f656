// The jobs of runs on another scheduler: submits one when a run needs nodes, looks how it is, and
// cancels it when the run is over. When a job ends and its run does not, the next one is submitted.
//
//   run queued ──▶ allocate ──▶ look ──▶ its agents join ──▶ the run gets their slots
//                     ▲           │
//                     └── again ──┴──▶ the run is over: cancel, refuse the agents' certificates
//
// A job's row is on disk before the scheduler is asked, so that no second one is submitted after a
// crash. All on the loop's thread; programs of the scheduler run on `workers`. It stops by being
// destroyed; jobs go on.
#pragma once

#include "common/net/offload.h"
#include "common/wire/api_types.h"
#include "daemon/engines/engine.h"
#include "daemon/run_loop/clock.h"
#include "daemon/run_loop/run_loop.h"
#include "daemon/store/ledger.h"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace nsa::engines {

using EngineMap = std::map<spec::EngineName, std::shared_ptr<Engine>>;

class Jobs {
public:
  // What it works with; all of them outlive it.
  struct Tools {
    control::Clock& clock;
    control::RunLoop& loop;
    store::Ledger& ledger;
    net::Offload& workers;
  };
  struct Options {
    EngineMap engines;
    // Of an open run; null: there is none.
    std::function<const spec::RunSpec*(const RunId& run)> spec_of;
    std::string program;                                 // path of nsad
    std::string state_folder;                            // runs/<run>/job is the job's folder
    std::function<Result<std::string>()> address, token; // of the head; for one agent
    std::function<int(const RunId& run)> heard;          // agents of the run's job
    std::function<void(const std::string& node)> retire; // its certificate is refused from now on
    Duration look = std::chrono::seconds(5);             // between two questions about a job
    Duration settle = std::chrono::seconds(30); // until a job that is over is not run again
    Duration pause = std::chrono::seconds(10);  // before a failed job's next one; doubled each time
  };
  Jobs(const Tools& tools, Options options) : tools_(tools), options_(std::move(options)) {}

  // Once the open runs are loaded.
  Status start();
  void tick(); // about once a second

  // Whether a run can be submitted to this scheduler. kNotFound, kConflict.
  Status check(spec::EngineName engine) const;
  // What would be submitted.
  Result<std::string> dry_text(const spec::RunSpec& spec) const;
  // "Slurm job 42 is PENDING (Resources)"
  std::string how_is(const RunId& run) const;
  wire::JobView view_of(const RunId& run) const; // without an engine: it has no job

private:
  struct Job {
    store::JobRow row;
    std::string problem;  // why nothing could be asked; empty: it could
    bool asking = false;  // a program of the scheduler is under way
    int restarts = 0;     // by its scheduler
    int failures = 0;     // jobs in a row whose agents were never heard all
    std::string previous; // the job before, which may not be run again
    MonotonicTime look_at, tokens_at, maybe_over_since;
    bool maybe_over = false;
    bool served = false; // the run has had all its nodes
  };

  const spec::RunSpec* spec_of(const RunId& run) const; // of an open run that has an engine
  const std::shared_ptr<Engine>& engine_of(const Job& job) const;
  JobRequest request_of(const RunId& run, const spec::RunSpec& spec, int number) const;
  void submit(const RunId& run, const spec::RunSpec& spec);
  void ask_for(const RunId& run, const spec::RunSpec& spec);
  void on_submitted(const RunId& run, Result<std::string> job);
  void look(const RunId& run);
  void on_state(const RunId& run, Result<JobState> state);
  void on_end(const RunId& run, const JobState& state);
  void end(const RunId& run);
  void write_tokens(const RunId& run);
  void save(const Job& job);
  void note(const RunId& run, wire::EventKind kind, wire::Severity severity, std::string text);
  std::string title_of(const Job& job) const;
  std::string folder_of(const RunId& run) const;

  Tools tools_;
  Options options_;
  std::map<RunId, Job> jobs_; // of runs that have had one
};

} // namespace nsa::engines
