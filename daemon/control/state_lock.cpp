#include "daemon/control/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>

namespace nsa::control {

Result<UniqueFd> lock_state_folder(const std::string& folder) {
  UniqueFd fd(
      ::open((folder + "/nsad.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_errno("cannot open " + folder + "/nsad.lock");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kConflict, "another nsad runs on " + folder,
                "use it, or stop it with nsactl daemon stop");
  return fd;
}

} // namespace nsa::control
