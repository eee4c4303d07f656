// From a resolved run spec to what a shim starts: command lines and environments of the ranks.
// Pure.
//
// A rank's environment is built here from nothing: the contract of torchrun, the variables that the
// run's toggles become, and a short list of the node's own (kNodeVariables). The values of the
// variables that run.pass_environment names come from the submitter's file in the run's folder, and
// the shim adds them. Nothing else reaches a rank.
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
  std::vector<std::string> worker_arguments; // appended; tests
  std::string checkpoint_folder;             // to resume from; empty: from scratch
  uint64_t first_step = 0;                   // of that checkpoint
  std::string without_graphs;                // why CUDA graphs are not to be tried; empty: they may
  std::set<std::string> replaced_data;       // digests of data sets that the checkpoint may name
  std::vector<std::string> slots;            // one a rank: GPU UUIDs, or names of CPU slots
  std::vector<std::string> spare_slots;      // held beside them, on a rung of the run's ladder
  nlohmann::json run_spec;                   // at the top of the ladder; null: `spec` is that
  std::vector<int> rungs;                    // in effect
  std::string rung_taken_after;              // what took the newest
  std::map<std::string, std::string> node_environment; // of nsad; only kNodeVariables are taken
  wire::RankQuotas quotas;
  wire::AttemptLimits limits;
  std::vector<std::string> restart_daemon;
};

// Variables of the daemon's own environment that ranks get when they are set: of each node its own.
// What a toggle of the run becomes comes before them. Three switch NVLink multicast off where a
// host forbids it. Those behind them are of NCCL between nodes.
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
                                                      "NCCL_HOSTID"};
// The GPUs that a rank may see, by UUID; empty for ranks on CPU.
inline constexpr std::string_view kVisibleDevices = "CUDA_VISIBLE_DEVICES";

std::string attempt_folder(const std::string& run_folder, AttemptNumber attempt);
std::string rank_log_path(const std::string& attempt_folder, Rank rank);

// kInvalidArgument when slots do not match ranks or a toggle is wrong (both are checked before).
Result<wire::LaunchPlan> make_launch_plan(const AttemptInput& input);

} // namespace nsa::plan
