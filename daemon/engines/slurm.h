// Slurm: sbatch submits one job with an agent a node; scontrol says how it is; scancel ends it.
// Rendering and parsing are pure.
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

// The batch script.
std::string slurm_script(const JobRequest& request);
// By which a job that was submitted before a crash is found.
std::string slurm_name(const RunId& run, int number);
// Of one line of `scontrol --oneliner show job`. kCorrupt: it has no state.
Result<JobState> read_slurm_job(std::string_view line);
// Of `sbatch --parsable`: "42" or "42;cluster". kCorrupt: it is no number.
Result<std::string> read_slurm_id(std::string_view printed);

} // namespace nsa::engines
