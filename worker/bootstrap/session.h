// Session runs a rank from its command line to its end. It opens device, data, model, peers and
// checkpoint, sends the hello message, and trains. Only this class knows all the parts.
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
  Rank local_rank = 0; // number among the ranks of its node
  int world = 1;
  comm::RendezvousAddress rendezvous;
  std::optional<std::filesystem::path> resume; // a checkpoint folder
  std::string without_graphs; // why CUDA graphs are not tried, whatever the toggle says; empty if
                              // they may be
  std::set<std::string> replaced_data; // digests of other data sets that the checkpoint may name
};

// Call it before anything else uses LibTorch (see runtime::open_runtime). If it fails or throws,
// log the reason and exit the process at once, because its threads and connections still exist.
RankResult<Finished> run_rank(const RankOptions& options, link::Link& link, progress::Page page);

} // namespace nsa::train
