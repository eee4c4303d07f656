// A scheduler of somebody else that gives a run its nodes by a job. nsad asks for nodes, looks how
// the job is, and cancels it; it schedules nothing itself. Each task of the job is an agent that
// dials the head (docs/several-nodes.md).
//
// text() is pure. The other calls start programs and wait for them: never on the loop's thread. Any
// thread; they share no state.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <string>
#include <vector>

namespace nsa::engines {

struct JobRequest {
  RunId run;
  int number = 1; // of the run's jobs
  int nodes = 1, ranks_per_node = 1, threads = 1;
  bool gpus = false;   // a GPU for each rank
  std::string head;    // "HOST:PORT", as agents dial it
  std::string program; // path of nsad, on every node
  std::string folder;  // of the job, on every node: tokens, the agents' script, their output
  int left_code = 0;   // exit code of an agent that was asked to leave and did
  spec::EngineSection wishes;
};

// How a job is, and what follows when it is over.
enum class JobEnd : uint8_t {
  kNone,      // it waits, runs, or is run again by its scheduler
  kMaybe,     // over, or about to be run again: a moment tells
  kAgain,     // over, and not by a fault: the run goes on in another job
  kFailed,    // it could not do its work
  kCancelled, // by a person
};
struct JobState {
  std::string state, reason; // in the scheduler's words
  JobEnd end = JobEnd::kNone;
  int restarts = 0; // by its scheduler: its agents have joined anew
};

class Engine {
public:
  virtual ~Engine() = default;
  virtual std::string title() const = 0; // "Slurm"
  // What allocate() hands to the scheduler; `nsactl submit --dry-run` shows it.
  virtual std::string text(const JobRequest& request) const = 0;
  // Whether the scheduler's programs are here. kNotFound says which is not.
  virtual Status check() const = 0;
  // Exit code of an agent that has left since its scheduler asked for that.
  virtual int left_code() const { return 0; }
  // The job's id. A job of this run and number that is there already is found, and none is made.
  virtual Result<std::string> allocate(const JobRequest& request) = 0;
  // kNotFound: the scheduler knows no such job, or not any more.
  virtual Result<JobState> state(const std::string& job) = 0;
  // One that is over or not known is cancelled already.
  virtual Status cancel(const std::string& job) = 0;
};

// The script of one agent, which every task runs: `<folder>/agent.sh`.
std::string agent_script(const JobRequest& request);
// Files of the job's folder.
std::string agent_script_path(const JobRequest& request);
std::string token_path(const std::string& folder, int node);
// The name under which the job's agent number `node` joins: the same in each of the run's jobs, so
// that a run that waits for its nodes finds them again.
std::string node_name(const RunId& run, int node);
// One word for a shell, whatever it holds.
std::string quoted(const std::string& text);

} // namespace nsa::engines
