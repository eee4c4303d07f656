#include "common/dataset/mixture.h"

#include "common/base/checksum.h"
#include "common/base/json.h"
#include "common/dataset/generations.h"
#include "common/spec/mixture.h"

namespace nsa::dataset {

std::string mixture_digest(std::span<const MixedSource> sources) {
  if (sources.size() == 1) return sources.front().digest;
  nlohmann::json identity = nlohmann::json::array();
  for (const MixedSource& source : sources)
    identity.push_back({source.digest, source.weight});
  return checksum_hex(identity.dump());
}

Result<RunText> read_text(const spec::DataSection& data, const FileOpener& open) {
  const std::vector<spec::DataSource> sources = spec::sources_of(data);
  const std::vector<int64_t> weights = spec::whole_weights(sources);
  RunText text;
  for (size_t i = 0; i < sources.size(); ++i) {
    NSA_TRY_ASSIGN(Manifest manifest, read_source(sources[i], open));
    text.sources.push_back({manifest.digest, weights[i]});
    text.manifests.push_back(std::move(manifest));
  }
  text.digest = mixture_digest(text.sources);
  return text;
}

} // namespace nsa::dataset
