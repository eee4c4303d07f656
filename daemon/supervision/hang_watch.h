// Looks for hangs of an attempt, on one node or several, and tells of them as events: found, found
// to be a debugger's, withdrawn, and steps that are slow. On the loop's thread.
#pragma once

#include "common/net/offload.h"
#include "daemon/privilege/host.h"
#include "daemon/supervision/shim_connection.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

// What the attempt's folder is reached by: calls of `host` as the submitter, off the loop.
struct Reach {
  std::shared_ptr<privilege::Host> host;
  net::Offload& calls;
};

class HangWatch {
public:
  // `options` must live as long as this.
  HangWatch(ShimListener& listener, Reach reach, const ShimConnectionOptions& options);

  // The verdict is told by report(), once whoever asks has looked into it.
  std::optional<state::Verdict> observe(const std::vector<state::RankSample>& samples,
                                        MonotonicTime now);
  // `debugger`: its program, if the verdict is that one holds the rank. Nothing happens if the
  // culprit has moved meanwhile.
  void report(state::Verdict verdict, const std::string& debugger);
  // The evidence found a debugger on the culprit: no hang then.
  void give_to_debugger(int64_t tracer, const std::string& debugger);
  // Beside the evidence of that verdict on this node. `nodes`: where that of all nodes lies.
  void write_verdict(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                     const std::vector<state::RankSample>& samples,
                     const nlohmann::json& nodes) const;

  const std::optional<state::Verdict>& verdict() const { return verdict_; } // until withdrawn
  const state::PhaseLimits& limits() const { return detector_.limits(); }

private:
  void emit(state::EventBody body) { listener_.on_event(options_.key, std::move(body), 0); }
  void withdraw();

  ShimListener& listener_;
  Reach reach_;
  const ShimConnectionOptions& options_;
  state::HangDetector detector_;
  bool found_ = false; // and not over: the verdict is told, or looked into
  std::optional<state::Verdict> verdict_;
  int verdicts_;
};

} // namespace nsa::control
