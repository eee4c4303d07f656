// What several nodes have seen of one hang: each takes the stacks of its own ranks, and one of them
// may be slow. The verdict waits for all that are heard, but not for long, since no rank computes
// meanwhile. What comes later completes it.
//
// Pure: times come in. One thread.
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
  // Once the culprit's node has answered, the others have this long.
  static constexpr Duration kPatience = std::chrono::seconds(5);

  // `nodes`: of all parts, by number. `culprit`: the part of the rank that hangs. The ranks are
  // killed `limit` after `asked`, so the verdict does not wait longer than three quarters of that.
  EvidenceOfParts(std::string id, std::vector<std::string> nodes, size_t culprit,
                  MonotonicTime asked, Duration limit)
      : id_(std::move(id)), nodes_(std::move(nodes)), culprit_(culprit), saved_(nodes_.size()),
        asked_(asked), limit_(limit * 3 / 4) {}

  // False: of another hang.
  bool add(size_t part, state::EvidenceSaved saved, MonotonicTime now);
  // The verdict can be told, or told anew. `is_heard`: whether a part may still answer.
  bool is_due(MonotonicTime now, const std::function<bool(size_t part)>& is_heard) const;
  // Of all nodes in one: the culprit's, with what the others have found and who is missing.
  state::EvidenceSaved joined() const;

  bool has_culprit() const { return saved_[culprit_].has_value(); }
  // Where that node has its stacks; empty: it has not said.
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
