#include "daemon/commands/node_provenance.h"

#include "common/dataset/manifest.h"
#include "daemon/run_metrics/provenance.h"

namespace nsa::control {

nlohmann::json NodeProvenance::begin(const RunRecord& record) {
  nlohmann::json now = begin_provenance(record, launcher_.programs());
  now["driver"] = slots_.gpus().driver;
  for (const gpu::GpuLink& link : slots_.gpus().links)
    now["topology"]["gpu_links"].push_back({{"from", link.from},
                                            {"to", link.to},
                                            {"nvlink", link.nvlink},
                                            {"peer_to_peer", link.peer_to_peer},
                                            {"path", link.path}});
  return now;
}

void NodeProvenance::read_dataset_digest(const RunRecord& record,
                                         std::function<void(const std::string&)> done) {
  const std::string folder = record.spec.data.path;
  readers_.run(
      {record.row.user, "the data set in " + folder},
      [folder, open = privilege::opener(host_, uid_of(record.row))] {
        return dataset::read_manifest(folder, open);
      },
      [done = std::move(done)](const Result<dataset::Manifest>& manifest) {
        if (manifest) done(manifest->digest);
      });
}

} // namespace nsa::control
