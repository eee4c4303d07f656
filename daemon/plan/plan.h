// Converts a resolved run spec to what a shim starts: command lines and environments of the ranks.
// Pure.
//
// A rank's environment is built here from nothing. It holds the variables of torchrun's contract,
// those of the run's toggles, and a short list of the node's own (kNodeVariables).
// run.pass_environment names further variables. Their values come from the submitter's file in the
// run's folder, and the shim adds them. Nothing else reaches a rank.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "common/wire/launch_plan.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::plan {

struct AttemptInput {
  RunId run_id;
  AttemptNumber attempt = 1;
  std::string token;
  spec::RunSpec spec;                        // resolved: device is "cpu" or "cuda"
  std::string run_folder;                    // <state>/runs/<id>
  std::string worker;                        // absolute path of nsa-worker
  std::vector<std::string> worker_arguments; // appended; for tests
  std::string checkpoint_folder;             // to resume from; empty starts from scratch
  uint64_t first_step = 0;                   // step of that checkpoint
  std::string without_graphs;                // why CUDA graphs must not be tried; empty if they may
  std::set<std::string> replaced_data; // digests of other data sets that the checkpoint may name
  std::vector<std::string> slots;      // one for each rank: GPU UUIDs, or names of CPU slots
  // Slots that the run holds but does not use on its rung of the ladder.
  std::vector<std::string> spare_slots;
  nlohmann::json run_spec; // spec at the top of the ladder; null if `spec` is that
  std::vector<int> rungs;  // rungs in effect
  std::optional<wire::FailureClass> rung_taken_after; // after which the newest rung was taken
  // Nsad's environment; only kNodeVariables are used.
  std::map<std::string, std::string> node_environment;
  wire::RankQuotas quotas;
  wire::AttemptLimits limits;
  std::vector<std::string> restart_daemon;
};

// Variables of the daemon's own environment that ranks get if they are set. On each node, that
// node's values apply. The variables of a run's toggles override them. Three of them switch NVLink
// multicast off on hosts that forbid it. The next three configure NCCL between nodes. The last two
// name the library of a profiler that CUDA and NVTX load.
inline constexpr std::string_view kNodeVariables[] = {"PATH",
                                                      "HOME",
                                                      "USER",
                                                      "LANG",
                                                      "LC_ALL",
                                                      "TZ",
                                                      "TMPDIR",
                                                      "LD_LIBRARY_PATH",
                                                      "XDG_RUNTIME_DIR",
                                                      "NCCL_NVLS_ENABLE",
                                                      "TORCH_SYMM_MEM_DISABLE_MULTICAST",
                                                      "NVSHMEM_DISABLE_NVLS",
                                                      "NCCL_SOCKET_IFNAME",
                                                      "NCCL_IB_HCA",
                                                      "NCCL_HOSTID",
                                                      "CUDA_INJECTION64_PATH",
                                                      "NVTX_INJECTION64_PATH"};
// UUIDs of the GPUs that a rank may see; empty for ranks on CPU.
inline constexpr std::string_view kVisibleDevices = "CUDA_VISIBLE_DEVICES";

std::string attempt_folder(const std::string& run_folder, AttemptNumber attempt);
std::string rank_log_path(const std::string& attempt_folder, Rank rank);

// Error: kInvalidArgument if slots do not match ranks or a toggle is wrong. Callers check both
// before.
Result<wire::LaunchPlan> make_launch_plan(const AttemptInput& input);

} // namespace nsa::plan
