// How nsad reaches what belongs to a submitter: data sets, all files below a run's folder, shims.
// In user mode that is nsad's own user (DirectHost). In system mode nsa-starter forks a child with
// the submitter's uid, gid and groups, which calls the same DirectHost function and sends the
// result back (StarterHost). docs/design/threat-model.md says why.
//
// `as` is the submitter's uid; DirectHost ignores it. Every call blocks, in system mode until a
// time limit at most (kUnavailable then), so none belongs on the loop's thread. Any thread may
// call; nothing has to be stopped.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/manifest/manifest.h"
#include "common/wire/launch_plan.h"
#include "daemon/shim/client/client.h"

#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::privilege {

struct NewFile {
  std::string name; // within its folder
  std::string content;
  unsigned mode = 0640;
};

struct AttemptStart {
  wire::LaunchPlan plan;
  std::string spec; // <attempt>/spec.json
  shim::StartOptions options;
};

class Host {
public:
  virtual ~Host() = default;

  // ---- files
  // A regular file, for reading; without waiting for whoever holds the other end of a FIFO.
  virtual Result<UniqueFd> open_file(uid_t as, const std::string& path) = 0;
  // Makes the folder, writes the files into it (atomically, each replaces one of its name).
  virtual Status write_files(uid_t as, const std::string& folder,
                             const std::vector<NewFile>& files) = 0;
  // <run>, a folder of the submitter's with mode 0700; kConflict where it is somebody else's.
  virtual Status make_run_folder(uid_t as, const std::string& folder) = 0;
  // With all that is in it. Not kNotFound when it is gone already.
  virtual Status remove_run_folder(uid_t as, const std::string& folder) = 0;
  // <run>/summary.json, in which came.disk_bytes becomes what the folder takes by now.
  virtual Status write_summary(uid_t as, const std::string& run_folder, nlohmann::json summary) = 0;

  // ---- checkpoints, of <run>/checkpoints
  virtual Result<std::vector<manifest::Found>>
  list_checkpoints(uid_t as, const std::string& run_folder, bool verify) = 0;
  // The newest that verifies; those that are distrusted are set aside.
  virtual Result<manifest::Choice>
  choose_checkpoint(uid_t as, const std::string& run_folder,
                    const std::vector<manifest::Distrust>& distrusted) = 0;
  // Makes `folder` a checkpoint of the files of another one, `checkpoint`
  // (manifest::link_checkpoint).
  virtual Status share_checkpoint(uid_t as, const std::string& checkpoint,
                                  const std::string& folder, bool with_optimizer) = 0;

  // ---- attempts
  // Makes the attempt's folder and starts its shim, or finds the one that was started for this very
  // attempt before.
  virtual Result<shim::StartedShim> start_attempt(uid_t as, AttemptStart start) = 0;
  // A connected socket; kUnavailable while there is no shim.
  virtual Result<UniqueFd> connect_shim(uid_t as, const std::string& attempt_folder) = 0;
  virtual Result<shim::StartedAttempt> read_started(uid_t as,
                                                    const std::string& attempt_folder) = 0;
  // How the ranks ended, of those that have.
  virtual Result<std::vector<wire::RankExited>>
  read_exits(uid_t as, const std::string& attempt_folder, int ranks) = 0;
  virtual Result<int> end_leftovers(uid_t as, const std::string& attempt_folder) = 0;
  // For a shim that does not do what it is asked.
  virtual Status kill_shim(uid_t as, int pidfd) = 0;

  // Variables of the node that every submitter's ranks get (plan::AttemptInput). HOME and USER are
  // added as an attempt is started, where they are not the same for all.
  virtual std::map<std::string, std::string> node_environment() = 0;
};

// open_file as common/base/file.h wants it.
inline FileOpener opener(std::shared_ptr<Host> host, uid_t as) {
  return [host = std::move(host), as](const std::filesystem::path& path) {
    return host->open_file(as, path.string());
  };
}

} // namespace nsa::privilege
