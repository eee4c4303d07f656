#include "common/wire/launch_plan.h"

namespace nsa::wire {

NSA_DEFINE_JSON(RankLaunch, rank, arguments, environment, working_folder, log_path)
NSA_DEFINE_JSON(RankQuotas, events_per_second, steps_per_second, log_bytes_per_second)
NSA_DEFINE_JSON(AttemptLimits, processes, memory_bytes)
NSA_DEFINE_JSON(LaunchPlan, run_id, attempt, token, run_folder, attempt_folder, ranks,
                passed_environment, rendezvous, orphan_seconds, log_max_bytes, log_files, quotas,
                limits, slots, spare_slots, run_spec, rungs, rung_taken_after, first_step,
                checkpoint_folder, restart_daemon)

} // namespace nsa::wire
