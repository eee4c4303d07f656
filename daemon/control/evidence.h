// What the stacks and readings that a shim took say about a hang: the kind once more, with more to
// go by, and the findings a person wants to read first.
#pragma once

#include "common/base/result.h"
#include "daemon/state/event.h"
#include "daemon/state/hang.h"

#include <optional>
#include <string>

namespace nsa::control {

state::EvidenceSaved judge_evidence(const wire::EvidenceTaken& taken,
                                    const std::optional<state::Verdict>& verdict);

// Where a rank stood when the verdict fell: its page, the batch in hand included.
struct RankPage {
  Rank rank = 0;
  std::optional<progress::HostRecord> host;
  progress::DeviceRecord device;
};

// <evidence folder>/verdict.json: who, where, why, and every rank's page, beside the stacks.
Status write_verdict(const std::string& folder, const state::Verdict& verdict,
                     const state::EvidenceSaved& saved, const std::vector<RankPage>& pages);

} // namespace nsa::control
