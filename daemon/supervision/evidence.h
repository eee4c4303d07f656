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

state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict);

// A rank's GPU when the verdict fell.
struct RankGpu {
  Rank rank = 0;
  gpu::Gpu gpu;
  std::vector<uint64_t> xids; // that the driver has reported on it since nsad was started
};
// "its GPU: 100 % busy, 61 C, 412 W, no driver errors"; what is not known is left out.
std::string describe_gpu(const RankGpu& gpu);

// Where a rank stood when the verdict fell: its page, the batch in hand included.
struct RankPage {
  Rank rank = 0;
  std::optional<progress::HostRecord> host;
  progress::DeviceRecord device;
  progress::CollectiveRing collectives;
};

// <evidence folder>/verdict.json: who, where, why, and every rank's page, beside the stacks.
// `nodes`: where the evidence of several nodes lies, and how far their clocks are off.
privilege::NewFile verdict_file(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                                const std::vector<RankPage>& pages,
                                const std::vector<RankGpu>& gpus,
                                const nlohmann::json& nodes = nlohmann::json::array());

} // namespace nsa::control
