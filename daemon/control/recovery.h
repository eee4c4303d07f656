// Finds live shims that the ledger does not know, because it was damaged and replaced by an older
// backup or an empty one. Rebuilds their runs from the attempt's files, and ends a shim whose run
// cannot be rebuilt. This happens before any slot is granted, so their slots stay taken. It also
// happens before the loop runs, so reading files blocks no one.
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
  // Fails if the ledger cannot be read. No attempt has been ended then.
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
