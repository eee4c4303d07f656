// The head's book of nodes and tokens, kept in the ledger. Its rows are written at once and not
// with the run loop's batch, because the head tells a node only what is on disk.
//
// Use it on the ledger's thread. There is nothing to stop.
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
