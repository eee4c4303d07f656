// Whether a run may start on this node, and what it will take: the run file's own mistakes and
// those that only this node can find (its data set, its capacity, what the chosen device forbids)
// are told at once, each at its place.
//
// Reads a file that the submitter names, and takes as long as that takes: never on the loop's
// thread. No state; any thread.
#pragma once

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/manifest/manifest.h"
#include "common/spec/origin.h"
#include "common/spec/run_spec.h"
#include "daemon/api/service.h"
#include "daemon/privilege/host.h"
#include "daemon/requests/worker_check.h"
#include "daemon/store/rows.h"

#include <map>
#include <string>
#include <vector>

namespace nsa::control {

struct RunFile {
  std::string toml, name,
      folder; // its text, its name in errors, what relative paths are relative to
  std::vector<std::string> overrides;
};

struct NodeCapacity {
  int cpu_slots = 0, gpus = 0;
  bool gpus_pending = false;   // they are still being listed
  bool is_head = false;        // nodes may join it
  int cpu_slots_elsewhere = 0; // of nodes that have joined, are heard and take runs
  int gpus_elsewhere = 0;
  std::map<spec::EngineName, Error> engine_problems; // why no job can be submitted there
};

struct Admitted {
  spec::RunSpec spec; // resolved: every path absolute, the device chosen
  nlohmann::json spec_json, estimate;
  std::string digest, toml; // of the spec
  std::vector<std::string> old_names, warnings;
};

// And what a resume says and records besides.
struct Resumable {
  Admitted admitted;
  std::string exactness;     // what is as in a run that nobody disturbed, and what is not
  std::string replaced_data; // digest of the data set that another one takes the place of
};

tl::expected<Admitted, api::SubmitFailure> admit(const RunFile& file, const NodeCapacity& node,
                                                 const FileOpener& open = open_regular_file);

// The run whose weights another one begins with, as the ledger has it.
struct Parent {
  spec::Origin origin;
  spec::RunSpec spec;
  std::string folder; // <state>/runs/<id>
  std::vector<store::CheckpointRow> checkpoints;
};

// Whether the weights fit the run: each key that is in the way, at its place. `found`: the parent's
// checkpoints on the disk.
tl::expected<void, api::SubmitFailure> check_parent(const RunFile& file, const spec::RunSpec& spec,
                                                    const Parent& parent,
                                                    const std::vector<manifest::Found>& found,
                                                    const FileOpener& open = open_regular_file);

// Steps of the checkpoints that a run can begin with, newest first.
std::vector<uint64_t> usable_steps(const std::vector<store::CheckpointRow>& rows, const RunId& run,
                                   const std::vector<manifest::Found>& found);

// What the run will take, where it can be said before it starts.
nlohmann::json estimate_of(const spec::RunSpec& spec);

tl::unexpected<api::SubmitFailure> refuse(Error error);

// What is no fault of the run file: the trainer can be started here, and the disk under `folder`
// has room for the checkpoints that the run keeps, beyond the `has` bytes of those that it has.
Status require_means(const spec::RunSpec& spec, const std::string& folder, int64_t has,
                     WorkerCheck& worker);

// Makes <run>/ with run.toml: the whole run file as it was submitted. A file beside it has the
// values of the variables that run.pass_environment names; they are nowhere else. A resume passes
// no `environment` and keeps the values of the submission.
Status make_run_folder(privilege::Host& host, uid_t as, const std::string& folder,
                       const Admitted& admitted,
                       const std::map<std::string, std::string>* environment);

} // namespace nsa::control
