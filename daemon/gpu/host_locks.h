// One lock file a GPU in a folder that every nsad of the host shares, so that the daemons of two
// users never give out the same one. The lock is held by flock while nsad lives; and because ranks
// outlive their nsad, the file also names the attempt's shim: while that process lives, only the
// daemon of the same state folder may take the lock over.
//
// A file has mode 0600, so that its owner alone can lock or change it: to the nsad of another user
// its mere existence says that the GPU is taken. So a release removes the name, under the lock, and
// whoever gets a lock looks whether its file still has its name. One thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace nsa::gpu {

struct Holder {
  std::string state_folder, run; // whose it is
  std::string boot_id;           // of the shim's process; empty: no ranks yet
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};

class HostLocks {
public:
  // The folder is made with the sticky bit, as /tmp is, if it is missing. kPermission: it is a
  // link, belongs to another user than root and us, or others could remove our files in it.
  static Result<HostLocks> open(const std::filesystem::path& folder, std::string state_folder,
                                std::function<bool(const Holder&)> is_alive);

  // kConflict, naming the holder, when another daemon has it or its ranks still live.
  Status acquire(const std::string& slot, const std::string& run);
  // Names the shim that the slot's ranks live under.
  Status set_holder(const std::string& slot, const Holder& holder);
  void release(const std::string& slot);
  bool holds(const std::string& slot) const { return held_.count(slot) != 0; }

private:
  HostLocks(UniqueFd folder, std::string state_folder, std::function<bool(const Holder&)> is_alive)
      : folder_(std::move(folder)), state_folder_(std::move(state_folder)),
        is_alive_(std::move(is_alive)) {}

  void remove_stale(const std::filesystem::path& folder) const;

  UniqueFd folder_;
  std::string state_folder_;
  std::function<bool(const Holder&)> is_alive_;
  std::map<std::string, UniqueFd> held_;
};

} // namespace nsa::gpu
