// A rank from its command line to its end. It opens device, data, model, peers and checkpoint,
// sends its hello, and trains. Only this class knows all the parts.
#pragma once

#include "common/progress/page.h"
#include "common/spec/run_spec.h"
#include "worker/link/link.h"
#include "worker/mesh/rendezvous_address.h"
#include "worker/trainer/failure.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace nsa::train {

struct RankOptions {
  spec::RunSpec spec;
  std::filesystem::path run_folder, attempt_folder;
  RunId run_id;
  AttemptNumber attempt = 1;
  Rank rank = 0;
  Rank local_rank = 0; // among those of its node
  int world = 1;
  comm::RendezvousAddress rendezvous;
  std::optional<std::filesystem::path> resume; // a checkpoint folder
  std::string without_graphs; // why CUDA graphs are not tried, whatever "auto" would take; or empty
  std::set<std::string> replaced_data; // digests of data sets that the checkpoint may name, too
};

// Call it before anything else touches LibTorch (see runtime::open_runtime). Where it fails or
// throws, say why and leave the process at once: its threads and connections are still there.
RankResult<Finished> run_rank(const RankOptions& options, link::Link& link, progress::Page page);

} // namespace nsa::train
