// The head's book of nodes and tokens, kept in the ledger. Its rows are written at once, not with
// the run loop's batch: a node is told only what is on disk.
//
// On the ledger's thread. It has nothing to stop.
#pragma once

#include "daemon/cluster/head.h"
#include "daemon/store/ledger.h"

namespace nsa::control {

class LedgerBook final : public cluster::NodeBook {
public:
  explicit LedgerBook(store::Ledger& ledger) : ledger_(ledger) {}

  Result<std::vector<cluster::NodeRecord>> nodes() override;
  Status save(const cluster::NodeRecord& node) override;
  Result<std::optional<cluster::TokenRecord>> token(const std::string& digest) override;
  Status add(const cluster::TokenRecord& token) override;
  Status admit(const std::string& digest, const cluster::NodeRecord& node) override;

private:
  store::Ledger& ledger_;
};

} // namespace nsa::control
