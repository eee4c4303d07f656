// The Slurm engine: sbatch submits one job with an agent on each node, scontrol reads its state,
// and scancel ends it. Rendering and parsing are pure.
#pragma once

#include "daemon/engines/engine.h"

#include <string_view>

namespace nsa::engines {

class Slurm final : public Engine {
public:
  std::string title() const override { return "Slurm"; }
  std::string text(const JobRequest& request) const override;
  Status check() const override;
  Result<std::string> allocate(const JobRequest& request) override;
  Result<JobState> state(const std::string& job) override;
  Status cancel(const std::string& job) override;
};

// Returns the batch script.
std::string slurm_script(const JobRequest& request);
// Returns the job's name, by which nsad finds a job that it submitted before a crash.
std::string slurm_name(const RunId& run, int number);
// Parses one line of `scontrol --oneliner show job`. Error: kCorrupt if the line has no state.
Result<JobState> read_slurm_job(std::string_view line);
// Parses the output of `sbatch --parsable`: "42" or "42;cluster". Error: kCorrupt if it is no
// number.
Result<std::string> read_slurm_id(std::string_view printed);

} // namespace nsa::engines
