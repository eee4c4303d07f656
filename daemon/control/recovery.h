// Shims that live and that the ledger does not know: after it was damaged and an old backup, or
// none, took its place. Their runs are taken up from the files of the attempt; what cannot be taken
// up is ended. Both before any slot is granted, so that nobody gets what they hold, and before the
// loop runs: what is read here blocks nobody.
#pragma once

#include "daemon/commands/slots.h"
#include "daemon/privilege/host.h"
#include "daemon/run_metrics/run_metrics.h"
#include "daemon/store/ledger.h"
#include "daemon/supervision/live_shims.h"

#include <memory>
#include <random>
#include <string>

namespace nsa::control {

class Recovery {
public:
  struct Tools {
    RunLoop& loop;
    RunMetrics& metrics;
    store::Ledger& ledger;
    SlotPool& slots;
    std::shared_ptr<privilege::Host> host;
  };
  Recovery(Tools tools, std::string state_folder)
      : tools_(std::move(tools)), state_folder_(std::move(state_folder)),
        random_(std::random_device{}()) {}
  // Fails where the ledger cannot be read; nobody has been ended then.
  Status take_up_live_shims();

private:
  bool knows(const LiveShim& shim) const;
  // `stored`: the ledger has rows of the run.
  Status recover(const LiveShim& shim, bool stored);
  Status recall_or_make_record(const LiveShim& shim, const spec::RunSpec& spec, bool stored);
  void end_unknown(const LiveShim& shim, const Error& why);

  Tools tools_;
  std::string state_folder_;
  std::mt19937_64 random_;
};

} // namespace nsa::control
