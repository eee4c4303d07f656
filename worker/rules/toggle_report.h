// What is in effect, beside what was asked for. Pure but for reading environment variables.
#pragma once

#include "common/base/result.h"
#include "common/wire/messages.h"

#include <map>
#include <string>

namespace nsa::train {

// What lies around attention, beside its branches, in `kernels` below.
inline constexpr const char* kLayersPart = "layers";
// How the tied embedding's gradient is put together: "joined" or "separate".
inline constexpr const char* kEmbeddingPart = "layers.embedding";
// How forward and backward passes reach the device: "on" as graphs, else "off".
inline constexpr const char* kGraphsPart = "graphs";

// `requested`: resolved toggles, defaults filled in. `kernels`: part -> what computes it, its first
// word a toggle's value and the rest detail (model::kernels_in_effect()).
wire::RankToggles report_toggles(Rank rank, const std::map<std::string, std::string>& requested,
                                 const std::map<std::string, std::string>& kernels);

// kConflict naming every toggle whose effective value is not the requested one ("auto" requests
// none): such an attempt does not train, since nobody could say later what was measured.
Status check_toggles(const wire::RankToggles& report);

} // namespace nsa::train
