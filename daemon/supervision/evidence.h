// Judges the stacks and readings that a shim has taken of a hang: the kind of the hang with more
// facts, and the findings that a person should read first.
#pragma once

#include "common/base/result.h"
#include "daemon/gpu/nvml.h"
#include "daemon/privilege/host.h"
#include "daemon/state/event.h"
#include "daemon/state/hang.h"

#include <optional>
#include <string>

namespace nsa::control {

// A rank's GPU when the verdict fell.
struct RankGpu {
  Rank rank = 0;
  gpu::Gpu gpu;
  std::vector<uint64_t> xids; // that the driver has reported on it since nsad was started
};
// "its GPU: 100 % busy, 61 C, 412 W, no driver errors"; what is not known is left out.
std::string describe_gpu(const RankGpu& gpu);

// `gpus`: of all ranks of the attempt; that of the culprit is a finding.
state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict,
                                    const std::vector<RankGpu>& gpus);

// <evidence folder>/verdict.json: who, where, why, and every rank's page, the batch in hand
// included, beside the stacks. `nodes`: where the evidence of several nodes lies, and how far their
// clocks are off.
privilege::NewFile verdict_file(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                                const std::vector<state::RankSample>& samples,
                                const std::vector<RankGpu>& gpus,
                                const nlohmann::json& nodes = nlohmann::json::array());

} // namespace nsa::control
