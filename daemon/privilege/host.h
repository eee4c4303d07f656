// How nsad accesses what belongs to a submitter: data sets, all files below a run's folder, and
// shims. In user mode that is nsad's own user (DirectHost). In system mode nsa-starter forks a
// child with the submitter's uid, gid and groups. The child calls the same DirectHost function and
// sends the result back (StarterHost). docs/design/system-mode.md gives the reasons.
//
// `as` is the submitter's uid; DirectHost ignores it. Every call blocks, so none belongs on the
// loop's thread. In system mode each call has a time limit and then fails with kUnavailable. Any
// thread may call; there is nothing to stop.
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
  std::string name; // name within its folder
  std::string content;
  unsigned mode = 0640;
};

struct AttemptStart {
  wire::LaunchPlan plan;
  std::string spec; // content of <attempt>/spec.json
  shim::StartOptions options;
};

class Host {
public:
  virtual ~Host() = default;

  // ---- Files ------------------------------------------------------------------------------------
  // Opens a regular file for reading. It never waits for the other end of a FIFO.
  virtual Result<UniqueFd> open_file(uid_t as, const std::string& path) = 0;
  // Makes the folder and writes the files into it. Each file replaces one of the same name
  // atomically.
  virtual Status write_files(uid_t as, const std::string& folder,
                             const std::vector<NewFile>& files) = 0;
  // Makes <run>, a folder of mode 0700 that the submitter owns. Error: kConflict if another user
  // owns it.
  virtual Status make_run_folder(uid_t as, const std::string& folder) = 0;
  // Removes the folder with its content. Succeeds also if the folder is gone already.
  virtual Status remove_run_folder(uid_t as, const std::string& folder) = 0;
  // Writes <run>/summary.json. came.disk_bytes becomes the present size of the folder.
  virtual Status write_summary(uid_t as, const std::string& run_folder, nlohmann::json summary) = 0;

  // ---- Checkpoints, in <run>/checkpoints --------------------------------------------------------
  virtual Result<std::vector<manifest::Found>>
  list_checkpoints(uid_t as, const std::string& run_folder, bool verify) = 0;
  // Chooses the newest checkpoint that verifies, and sets distrusted ones aside.
  virtual Result<manifest::Choice>
  choose_checkpoint(uid_t as, const std::string& run_folder,
                    const std::vector<manifest::Distrust>& distrusted) = 0;
  // Makes `folder` a checkpoint that shares the files of `checkpoint` (manifest::link_checkpoint).
  virtual Status share_checkpoint(uid_t as, const std::string& checkpoint,
                                  const std::string& folder, bool with_optimizer) = 0;

  // ---- Attempts ---------------------------------------------------------------------------------
  // Makes the attempt's folder and starts its shim, or finds the shim that an earlier call started
  // for this attempt.
  virtual Result<shim::StartedShim> start_attempt(uid_t as, AttemptStart start) = 0;
  // Returns a connected socket. Error: kUnavailable while there is no shim.
  virtual Result<UniqueFd> connect_shim(uid_t as, const std::string& attempt_folder) = 0;
  virtual Result<shim::StartedAttempt> read_started(uid_t as,
                                                    const std::string& attempt_folder) = 0;
  // Returns how the ranks ended that have ended.
  virtual Result<std::vector<wire::RankExited>>
  read_exits(uid_t as, const std::string& attempt_folder, int ranks) = 0;
  virtual Result<int> end_leftovers(uid_t as, const std::string& attempt_folder) = 0;
  // Kills a shim that does not do what it is asked.
  virtual Status kill_shim(uid_t as, int pidfd) = 0;

  // Returns the node's variables that every submitter's ranks get (plan::AttemptInput). HOME and
  // USER differ between submitters, so the start of an attempt adds them.
  virtual std::map<std::string, std::string> node_environment() = 0;
};

// Wraps open_file as common/base/file.h expects it.
inline FileOpener opener(std::shared_ptr<Host> host, uid_t as) {
  return [host = std::move(host), as](const std::filesystem::path& path) {
    return host->open_file(as, path.string());
  };
}

} // namespace nsa::privilege
