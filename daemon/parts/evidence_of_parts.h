// Evidence of one hang from several nodes. Each node takes the stacks of its own ranks, and one of
// them may be slow. The verdict waits for all connected nodes, but not for long, since no rank
// computes meanwhile. Late evidence completes it.
//
// Pure: the caller passes the time. One thread.
#pragma once

#include "common/base/clock.h"
#include "daemon/state/event.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nsa::parts {

class EvidenceOfParts {
public:
  // After the culprit's node has answered, the others have this much time.
  static constexpr Duration kPatience = std::chrono::seconds(5);

  // `nodes` are those of all parts, by number. `culprit` is the part of the rank that hangs. The
  // ranks are killed `limit` after `asked`, so the verdict waits at most three quarters of that.
  EvidenceOfParts(std::string id, std::vector<std::string> nodes, size_t culprit,
                  MonotonicTime asked, Duration limit)
      : id_(std::move(id)), nodes_(std::move(nodes)), culprit_(culprit), saved_(nodes_.size()),
        asked_(asked), limit_(limit * 3 / 4) {}

  // Returns false if the evidence is of another hang.
  bool add(size_t part, state::EvidenceSaved saved, MonotonicTime now);
  // Whether the verdict can be reported, or reported again. `is_heard` says whether a part may
  // still answer.
  bool is_due(MonotonicTime now, const std::function<bool(size_t part)>& is_heard) const;
  // The evidence of all nodes in one: the culprit's, with the findings of the others and the names
  // of missing nodes.
  state::EvidenceSaved joined() const;

  bool has_culprit() const { return saved_[culprit_].has_value(); }
  // Folder of that node's stacks; empty if the node has not answered.
  std::string folder(size_t part) const { return saved_[part] ? saved_[part]->folder : ""; }
  bool was_told() const { return told_; }
  void note_told() { told_ = true; }

private:
  std::string id_;
  std::vector<std::string> nodes_;
  size_t culprit_;
  std::vector<std::optional<state::EvidenceSaved>> saved_; // by part
  MonotonicTime asked_, culprit_at_;
  Duration limit_;
  bool told_ = false;
};

} // namespace nsa::parts
