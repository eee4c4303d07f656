#include "daemon/commands/node_provenance.h"

#include "common/dataset/mixture.h"
#include "common/spec/mixture.h"
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

void NodeProvenance::read_data(const RunRecord& record,
                               std::function<void(const nlohmann::json&)> done) {
  const std::vector<spec::DataSource> sources = spec::sources_of(record.spec.data);
  readers_.run(
      {record.row.user, "the data set in " + sources.front().path},
      [data = record.spec.data, open = privilege::opener(host_, uid_of(record.row))] {
        return dataset::read_text(data, open);
      },
      [done = std::move(done), sources](const Result<dataset::RunText>& text) {
        if (!text) return;
        nlohmann::json facts = {{"dataset_digest", text->digest}};
        for (size_t i = 0; i < sources.size() && sources.size() > 1; ++i)
          facts["data_sources"].push_back({{"path", sources[i].path},
                                           {"weight", text->sources[i].weight},
                                           {"digest", text->sources[i].digest}});
        done(facts);
      });
}

} // namespace nsa::control
