// The real ProvenanceSource: the programs and driver of this node, and the data set's manifest.
// Another thread reads the manifest, because the file belongs to the submitter.
#pragma once

#include "common/net/offload.h"
#include "daemon/commands/host_launcher.h"
#include "daemon/commands/slots.h"
#include "daemon/run_metrics/run_metrics.h"

#include <memory>

namespace nsa::control {

class NodeProvenance final : public ProvenanceSource {
public:
  NodeProvenance(const HostLauncher& launcher, const SlotPool& slots,
                 std::shared_ptr<privilege::Host> host, net::Offload& readers)
      : launcher_(launcher), slots_(slots), host_(std::move(host)), readers_(readers) {}
  nlohmann::json begin(const RunRecord& record) override;
  void read_data(const RunRecord& record, std::function<void(const nlohmann::json&)> done) override;

private:
  const HostLauncher& launcher_;
  const SlotPool& slots_;
  std::shared_ptr<privilege::Host> host_;
  net::Offload& readers_;
};

} // namespace nsa::control
