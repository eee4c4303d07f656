// Evidence as files: rank-<n>.txt for people, whole; evidence.json for nsad, an EvidenceTaken that
// fits a frame. Pure but for the two writers.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/wire/messages.h"

#include <filesystem>
#include <string>

namespace nsa::shim::evidence {

// What evidence.json may hold; a frame takes 1 MiB, and the envelope needs some.
inline constexpr size_t kMaxEvidenceBytes = 768 * 1024;

std::string rank_text(const wire::RankEvidence& rank);

// JSON text of at most `max_bytes`. Frames, then threads are left out at the end of each rank's
// list if need be (the main thread comes first and is kept); `error` says how many.
std::string evidence_json(const wire::EvidenceTaken& taken, size_t max_bytes = kMaxEvidenceBytes);

Status write_reports(const std::filesystem::path& folder, const wire::EvidenceTaken& taken,
                     Survives survives);

} // namespace nsa::shim::evidence
