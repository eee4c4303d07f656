// Looks for hangs of an attempt, on one node or several, and reports them as events. A hang is
// found, found to be a debugger's work, or withdrawn. Slow steps are reported, too. All calls are
// on the loop's thread.
#pragma once

#include "common/net/offload.h"
#include "daemon/privilege/host.h"
#include "daemon/supervision/shim_connection.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

// Access to the attempt's folder: calls of `host` as the submitter, off the loop's thread.
struct Reach {
  std::shared_ptr<privilege::Host> host;
  net::Offload& calls;
};

class HangWatch {
public:
  // `options` must outlive this object.
  HangWatch(ShimListener& listener, Reach reach, const ShimConnectionOptions& options);

  // Returns a new verdict. report() publishes it after the caller has checked it.
  std::optional<state::Verdict> observe(const std::vector<state::RankSample>& samples,
                                        MonotonicTime now);
  // `debugger` is the name of the tracing program if the verdict is kTraced. Does nothing if the
  // culprit has moved meanwhile.
  void report(state::Verdict verdict, const std::string& debugger);
  // The evidence shows a debugger on the culprit, so there is no hang.
  void give_to_debugger(int64_t tracer, const std::string& debugger);
  // Writes the verdict beside the evidence on this node. `nodes` says where the evidence of all
  // nodes is.
  void write_verdict(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                     const std::vector<state::RankSample>& samples,
                     const nlohmann::json& nodes) const;

  const std::optional<state::Verdict>& verdict() const { return verdict_; } // reset when withdrawn
  const state::PhaseLimits& limits() const { return detector_.limits(); }

private:
  void emit(state::EventBody body) { listener_.on_event(options_.key, std::move(body), 0); }
  void withdraw();

  ShimListener& listener_;
  Reach reach_;
  const ShimConnectionOptions& options_;
  state::HangDetector detector_;
  bool found_ = false; // a verdict is pending or reported, and not withdrawn
  std::optional<state::Verdict> verdict_;
  int verdicts_;
};

} // namespace nsa::control
