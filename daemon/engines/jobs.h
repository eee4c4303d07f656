// The jobs of runs on another scheduler. This class submits a job when a run needs nodes, reads its
// state, and cancels it when the run is over. If a job ends before its run does, it submits the
// next one.
//
//   run queued ──▶ allocate ──▶ look ──▶ its agents join ──▶ the run gets their slots
//                     ▲           │
//                     └── again ──┴──▶ the run is over: cancel, refuse the agents' certificates
//
// A job's row is on disk before the scheduler is asked, so no second job is submitted after a
// crash. All functions run on the loop's thread; programs of the scheduler run on `workers`.
// Destroy the object to stop it; jobs continue.
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
  // References to objects that outlive this one.
  struct Tools {
    control::Clock& clock;
    control::RunLoop& loop;
    store::Ledger& ledger;
    net::Offload& workers;
  };
  struct Options {
    EngineMap engines;
    // Returns the settings of an open run, and null if there is no such run.
    std::function<const spec::RunSpec*(const RunId& run)> spec_of;
    std::string program;      // path of nsad
    std::string state_folder; // runs/<run>/job is the job's folder
    // Return the head's address, and a new token for one agent.
    std::function<Result<std::string>()> address, token;
    std::function<int(const RunId& run)> heard; // connected agents of the run's job
    // Makes the head refuse the node's certificate.
    std::function<void(const std::string& node)> retire;
    Duration look = std::chrono::seconds(5);    // between two questions about a job
    Duration settle = std::chrono::seconds(30); // until a job in state kMaybe counts as over
    // Before the job after a failed one; doubled each time.
    Duration pause = std::chrono::seconds(10);
  };
  Jobs(const Tools& tools, Options options) : tools_(tools), options_(std::move(options)) {}

  // Call it after the open runs are loaded.
  Status start();
  void tick(); // call it about once a second

  // Checks whether a run can be submitted to this scheduler. Errors: kNotFound, kConflict,
  // kUnsupported.
  Status check(spec::EngineName engine) const;
  // Returns the text that would be submitted.
  Result<std::string> dry_text(const spec::RunSpec& spec) const;
  // Returns a text such as "Slurm job 42 is PENDING (Resources)".
  std::string how_is(const RunId& run) const;
  wire::JobView view_of(const RunId& run) const; // empty `engine`: the run has no job

private:
  struct Job {
    store::JobRow row;
    std::string problem;  // why the scheduler could not be asked; empty if it could
    bool asking = false;  // a program of the scheduler is running
    int restarts = 0;     // restarts by its scheduler
    int failures = 0;     // jobs in a row that ended before all their agents connected
    std::string previous; // id of the job before; it is cancelled first, so that it cannot be run
                          // again
    MonotonicTime look_at, tokens_at, maybe_over_since;
    bool maybe_over = false;
    bool served = false; // all the job's nodes have been connected
  };

  const spec::RunSpec* spec_of(const RunId& run) const; // only of an open run that has an engine
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
  std::map<RunId, Job> jobs_; // runs that have had a job
};

} // namespace nsa::engines
