// nsa-starter: the only process that stays root in system mode. For each request of nsad it forks a
// child. The child checks the submitter, becomes that user, and only then reads its task.
// docs/design/system-mode.md has the table of verbs. It has one thread, and ends when nsad ends.
#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "daemon/privilege/account.h"
#include "daemon/privilege/protocol.h"

#include <map>

namespace nsa::privilege {

struct StarterOptions {
  SubmitterRules rules;
  UniqueFd runs_folder; // the folder whose entries may be given away
};

// Checks that the starter may give `folder` to a submitter. It must be an empty folder that the
// daemon owns, directly below the runs folder.
Status check_gift(int folder, int runs_folder, uid_t daemon);

// Checks that the pidfd's process belongs to the submitter, with all four of its uids.
Status check_victim(int pidfd, uid_t submitter);

class Starter {
public:
  Starter(UniqueFd socket, StarterOptions options)
      : socket_(std::move(socket)), options_(std::move(options)) {}
  // Serves until the other end of the socket is closed.
  Status run();

private:
  struct Child {
    uid_t uid = 0;
    MonotonicTime end;
  };
  Status take_request(); // kNotFound: nsad has closed the socket
  Status check_room(uid_t uid) const;
  void start_child(const RequestHeader& header, std::vector<UniqueFd> descriptors);
  Result<Answer> serve(const RequestHeader& header, std::vector<UniqueFd> descriptors) const;
  void reap_children();
  void kill_late_children();

  UniqueFd socket_, signals_;
  StarterOptions options_;
  std::map<pid_t, Child> children_;
};

} // namespace nsa::privilege
