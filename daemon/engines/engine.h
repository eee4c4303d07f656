// An external scheduler that gives a run its nodes through a job. nsad requests nodes, reads the
// job's state, and cancels the job; it schedules nothing itself. Each task of the job is an agent
// that dials the head (docs/several-nodes.md).
//
// text() is pure. The other calls start programs and wait for them, so they must never run on the
// loop's thread. Any other thread may call them; they share no state.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <string>
#include <vector>

namespace nsa::engines {

struct JobRequest {
  RunId run;
  int number = 1; // number of this job among the run's jobs
  int nodes = 1, ranks_per_node = 1, threads = 1;
  bool gpus = false;   // true requests a GPU for each rank
  std::string head;    // "HOST:PORT", as agents dial it
  std::string program; // path of nsad, on every node
  std::string folder;  // the job's folder on every node: tokens, the agents' script, their output
  int left_code = 0;   // exit code of an agent that left because it was asked to
  spec::EngineSection wishes;
};

// Whether a job is over, and why.
enum class JobEnd : uint8_t {
  kNone,      // it waits, runs, or is being run again by its scheduler
  kMaybe,     // it is over, or its scheduler is about to run it again; a short wait decides
  kAgain,     // it is over without a fault; the run continues in another job
  kFailed,    // it could not do its work
  kCancelled, // a person cancelled it
};
struct JobState {
  std::string state, reason; // in the scheduler's words
  JobEnd end = JobEnd::kNone;
  int restarts = 0; // how often the scheduler restarted it; each time its agents join again
};

class Engine {
public:
  virtual ~Engine() = default;
  virtual std::string title() const = 0; // "Slurm"
  // Returns what allocate() hands to the scheduler. `nsactl submit --dry-run` shows it.
  virtual std::string text(const JobRequest& request) const = 0;
  // Checks whether the scheduler's programs are installed. The error kNotFound names the missing
  // one.
  virtual Status check() const = 0;
  // Returns the exit code of an agent that left because its scheduler asked it to.
  virtual int left_code() const { return 0; }
  // Returns the job's id. If a job of this run and number already exists, its id is returned and no
  // new job is made.
  virtual Result<std::string> allocate(const JobRequest& request) = 0;
  // Error: kNotFound if the scheduler does not know the job, or no longer knows it.
  virtual Result<JobState> state(const std::string& job) = 0;
  // Succeeds also if the job is over or unknown.
  virtual Status cancel(const std::string& job) = 0;
};

// Returns the script of one agent, which every task runs: `<folder>/agent.sh`.
std::string agent_script(const JobRequest& request);
// Paths of the files in the job's folder.
std::string agent_script_path(const JobRequest& request);
std::string token_path(const std::string& folder, int node);
// Returns the name under which the job's agent number `node` joins. Each of the run's jobs uses the
// same names, so a run that waits for its nodes finds them again.
std::string node_name(const RunId& run, int node);
// Quotes any text so that a shell reads it as one word.
std::string quoted(const std::string& text);

} // namespace nsa::engines
