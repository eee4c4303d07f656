#include "daemon/parts/evidence_of_parts.h"

#include <algorithm>

namespace nsa::parts {

bool EvidenceOfParts::add(size_t part, state::EvidenceSaved saved, MonotonicTime now) {
  if (part >= saved_.size() || saved.id != id_) return false;
  if (part == culprit_ && !has_culprit()) culprit_at_ = now;
  saved_[part] = std::move(saved);
  return true;
}

bool EvidenceOfParts::is_due(MonotonicTime now,
                             const std::function<bool(size_t part)>& is_heard) const {
  if (told_ || now - asked_ >= limit_) return true;
  if (!has_culprit()) return false;
  if (now - culprit_at_ >= kPatience) return true;
  for (size_t part = 0; part < saved_.size(); ++part)
    if (!saved_[part] && is_heard(part)) return false;
  return true;
}

state::EvidenceSaved EvidenceOfParts::joined() const {
  state::EvidenceSaved all;
  if (has_culprit()) all = *saved_[culprit_];
  all.id = id_;
  for (size_t part = 0; part < saved_.size(); ++part) {
    const auto& saved = saved_[part];
    if (!saved) {
      all.findings.push_back("node " + nodes_[part] + " has not sent the stacks of its ranks");
      continue;
    }
    if (part == culprit_) continue;
    if (!saved->error.empty()) all.error += (all.error.empty() ? "" : "; ") + saved->error;
    for (const std::string& finding : saved->findings)
      if (std::ranges::find(all.findings, finding) == all.findings.end())
        all.findings.push_back(finding);
  }
  return all;
}

} // namespace nsa::parts
