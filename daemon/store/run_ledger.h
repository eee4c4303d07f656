// The part of the ledger that the run loop and the commands use. Ledger implements it; tests keep
// rows in memory.
#pragma once

#include "common/base/result.h"
#include "daemon/store/rows.h"

namespace nsa::store {

class RunLedger {
public:
  virtual ~RunLedger() = default;
  // Writes one transaction, durable on return, and fills in the events' sequence numbers.
  virtual Status commit(Batch& batch) = 0;
  // Newest message of the attempt's shim that is on disk.
  virtual Result<uint64_t> shim_sequence(const RunId& run, AttemptNumber attempt) = 0;
  // The same for the shim of another part of the attempt, as sequence_of() numbers it
  // (wire/part_sequence.h).
  virtual Result<uint64_t> part_sequence(const RunId& run, AttemptNumber attempt, size_t part) = 0;
  virtual Result<std::string> token(const RunId& run, AttemptNumber attempt) = 0;
  // Releases reserved disk space. False: none was reserved.
  virtual bool release_reserve() = 0;
};

} // namespace nsa::store
