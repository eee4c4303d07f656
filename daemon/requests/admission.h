// Decides whether a run may start on this node, and estimates what it will take. It reports all
// mistakes at once, each at its place. Some are mistakes of the run file itself. Others only this
// node can find: data set, capacity, limits of the chosen device.
//
// It reads files that the submitter names and takes as long as that takes: never call it on the
// loop's thread. No state; any thread may call it.
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
      folder; // text of the run file, its name in errors, and the folder for relative paths
  std::vector<std::string> overrides;
};

struct NodeCapacity {
  int cpu_slots = 0, gpus = 0;
  bool gpus_pending = false;   // the GPUs are still being listed
  bool is_head = false;        // nodes may join this nsad
  int cpu_slots_elsewhere = 0; // slots of nodes that have joined, are connected and take runs
  int gpus_elsewhere = 0;
  std::map<spec::EngineName, Error> engine_problems; // why no job can be submitted to an engine
};

struct Admitted {
  spec::RunSpec spec; // the resolved spec: every path is absolute, and the device is chosen
  nlohmann::json spec_json, estimate;
  std::string digest, toml; // `digest` is that of the spec
  std::vector<std::string> old_names, warnings;
};

// An admitted resume, with what it reports and records in addition.
struct Resumable {
  Admitted admitted;
  std::string exactness;     // states what is exactly as in an undisturbed run, and what is not
  std::string replaced_data; // digest of the data set that another one replaces
};

tl::expected<Admitted, api::SubmitFailure> admit(const RunFile& file, const NodeCapacity& node,
                                                 const FileOpener& open = open_regular_file);

// The run whose weights another run begins with, from the ledger.
struct Parent {
  spec::Origin origin;
  spec::RunSpec spec;
  std::string folder; // <state>/runs/<id>
  std::vector<store::CheckpointRow> checkpoints;
};

// Checks whether the weights fit the run. It reports each key that prevents it, at its place.
// `found` are the parent's checkpoints on disk.
tl::expected<void, api::SubmitFailure> check_parent(const RunFile& file, const spec::RunSpec& spec,
                                                    const Parent& parent,
                                                    const std::vector<manifest::Found>& found,
                                                    const FileOpener& open = open_regular_file);

// Steps of the checkpoints that a run can begin with, newest first.
std::vector<uint64_t> usable_steps(const std::vector<store::CheckpointRow>& rows, const RunId& run,
                                   const std::vector<manifest::Found>& found);

// Estimates what the run will take, as far as that is known before it starts.
nlohmann::json estimate_of(const spec::RunSpec& spec);

tl::unexpected<api::SubmitFailure> refuse(Error error);

// Checks conditions that do not depend on the run file. The trainer can be started here, and the
// disk of `folder` has room for the checkpoints that the run keeps. `has` is the size in bytes of
// the checkpoints that the run already has.
Status require_means(const spec::RunSpec& spec, const std::string& folder, int64_t has,
                     WorkerCheck& worker);

// Makes <run>/ with run.toml: the whole run file as it was submitted. A separate file holds the
// values of the variables that run.pass_environment names; they are stored nowhere else. A resume
// passes no `environment` and keeps the values of the submission.
Status make_run_folder(privilege::Host& host, uid_t as, const std::string& folder,
                       const Admitted& admitted,
                       const std::map<std::string, std::string>* environment);

} // namespace nsa::control
