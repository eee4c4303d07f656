// Locks of GPUs, so that the daemons of two users never use the same GPU. Every nsad of the host
// shares one folder, which has one lock file for each GPU. nsad holds the lock by flock while it
// lives. Ranks outlive their nsad, so the file also names the attempt's shim. While that process
// lives, only the daemon of the same state folder may take the lock over.
//
// A file has mode 0600, so only its owner can lock or change it. To the nsad of another user, the
// file's existence says that the GPU is taken. So a release removes the name under the lock, and
// every new holder checks that its file still has its name. Use it on one thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace nsa::gpu {

struct Holder {
  std::string state_folder, run; // state folder and run that hold the GPU
  std::string boot_id;           // boot id of the shim's process; empty if there are no ranks yet
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};

class HostLocks {
public:
  // If the folder is missing, this makes it with the sticky bit, as /tmp has. Error: kPermission if
  // it is a link, has another owner than root and this user, or lets others remove our files.
  static Result<HostLocks> open(const std::filesystem::path& folder, std::string state_folder,
                                std::function<bool(const Holder&)> is_alive);

  // Error: kConflict, which names the holder, if another daemon has the lock or its ranks still
  // live.
  Status acquire(const std::string& slot, const std::string& run);
  // Records the shim of the ranks that use the slot.
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
