// privilege::Host for a part on another node. The node's nsad answers the calls that
// AttemptSupervisor makes about a shim's folder. Only calls about attempts are supported. The node
// chooses the folder's path, so the caller's path is ignored. Any thread may call it; every call
// waits.
#pragma once

#include "daemon/parts/remote_nodes.h"
#include "daemon/privilege/host.h"

namespace nsa::parts {

class RemoteHost final : public privilege::Host {
public:
  RemoteHost(RemoteNodes& nodes, std::string node, control::AttemptKey key)
      : nodes_(nodes), node_(std::move(node)), key_(std::move(key)) {}

  Result<UniqueFd> connect_shim(uid_t as, const std::string& attempt_folder) override;
  // Always kNotFound: a part's shim is identified by its attempt, and there is no second one.
  Result<shim::StartedAttempt> read_started(uid_t as, const std::string& attempt_folder) override;
  Result<std::vector<wire::RankExited>> read_exits(uid_t as, const std::string& attempt_folder,
                                                   int ranks) override;
  // For a node that is not connected: 0, because its shims have killed the processes by then.
  Result<int> end_leftovers(uid_t as, const std::string& attempt_folder) override;
  Status kill_shim(uid_t as, int pidfd) override;
  Result<shim::StartedShim> start_attempt(uid_t as, privilege::AttemptStart start) override;

  Result<UniqueFd> open_file(uid_t as, const std::string& path) override;
  Status write_files(uid_t as, const std::string& folder,
                     const std::vector<privilege::NewFile>& files) override;
  Status make_run_folder(uid_t as, const std::string& folder) override;
  Status remove_run_folder(uid_t as, const std::string& folder) override;
  Status write_summary(uid_t as, const std::string& run_folder, nlohmann::json summary) override;
  Result<std::vector<manifest::Found>> list_checkpoints(uid_t as, const std::string& run_folder,
                                                        bool verify) override;
  Result<manifest::Choice>
  choose_checkpoint(uid_t as, const std::string& run_folder,
                    const std::vector<manifest::Distrust>& distrusted) override;
  Status share_checkpoint(uid_t as, const std::string& checkpoint, const std::string& folder,
                          bool with_optimizer) override;
  std::map<std::string, std::string> node_environment() override { return {}; }

private:
  RemoteNodes& nodes_;
  std::string node_;
  control::AttemptKey key_;
};

} // namespace nsa::parts
