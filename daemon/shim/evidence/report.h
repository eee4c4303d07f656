// Writes evidence as files: rank-<n>.txt for people, complete; evidence.json for nsad, an
// EvidenceTaken that fits into a frame. Only write_reports() does I/O.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/wire/messages.h"

#include <filesystem>
#include <string>

namespace nsa::shim::evidence {

// Limit of evidence.json. A frame holds 1 MiB, and the envelope needs some of it.
inline constexpr size_t kMaxEvidenceBytes = 768 * 1024;

std::string rank_text(const wire::RankEvidence& rank);

// JSON text of at most `max_bytes`. If necessary it omits frames, then threads, from the end of
// each rank's list (the main thread comes first and stays); `error` says how many.
std::string evidence_json(const wire::EvidenceTaken& taken, size_t max_bytes = kMaxEvidenceBytes);

Status write_reports(const std::filesystem::path& folder, const wire::EvidenceTaken& taken,
                     Survives survives);

} // namespace nsa::shim::evidence
