// Judges the stacks and readings that a shim has taken of a hang. It refines the kind of the hang,
// and collects the findings that a person should read first.
#pragma once

#include "common/base/result.h"
#include "daemon/gpu/nvml.h"
#include "daemon/privilege/host.h"
#include "daemon/state/event.h"
#include "daemon/state/hang.h"

#include <optional>
#include <string>

namespace nsa::control {

// The GPU of a rank at the time of the verdict.
struct RankGpu {
  Rank rank = 0;
  gpu::Gpu gpu;
  // Xid errors that the driver has reported for the GPU since nsad was started.
  std::vector<uint64_t> xids;
};
// "its GPU: 100 % busy, 61 C, 412 W, no driver errors"; unknown values are left out.
std::string describe_gpu(const RankGpu& gpu);

// `gpus` are those of all ranks of the attempt. The culprit's GPU becomes a finding.
state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict,
                                    const std::vector<RankGpu>& gpus);

// <evidence folder>/verdict.json, beside the stacks: who, where, why, and every rank's page with
// its current batch. `nodes`: where the evidence of several nodes is, and how far their clocks
// differ.
privilege::NewFile verdict_file(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                                const std::vector<state::RankSample>& samples,
                                const std::vector<RankGpu>& gpus,
                                const nlohmann::json& nodes = nlohmann::json::array());

} // namespace nsa::control
