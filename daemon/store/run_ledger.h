// What the run loop and the commands need of the ledger. Ledger is the real one; tests keep rows in
// memory.
#pragma once

#include "common/base/result.h"
#include "daemon/store/rows.h"

namespace nsa::store {

class RunLedger {
public:
  virtual ~RunLedger() = default;
  // One transaction, durable on return; the events' sequence numbers are filled in.
  virtual Status commit(Batch& batch) = 0;
  // Newest message of the attempt's shim that is on disk.
  virtual Result<uint64_t> shim_sequence(const RunId& run, AttemptNumber attempt) = 0;
  // The same, of the shim of another part of it, as sequence_of() numbers it
  // (wire/part_sequence.h).
  virtual Result<uint64_t> part_sequence(const RunId& run, AttemptNumber attempt, size_t part) = 0;
  virtual Result<std::string> token(const RunId& run, AttemptNumber attempt) = 0;
  // Gives disk space back that was set aside. False: there was none to give.
  virtual bool release_reserve() = 0;
};

} // namespace nsa::store
