// Host with plain system calls, as the user of this process. nsad uses it in user mode. In system
// mode the children of nsa-starter use it after they have become the submitter.
#pragma once

#include "daemon/privilege/host.h"

namespace nsa::privilege {

uint64_t folder_bytes(const std::string& folder); // size of all files in the folder
std::map<std::string, std::string> environment_of_this_process();

class DirectHost final : public Host {
public:
  Result<UniqueFd> open_file(uid_t as, const std::string& path) override;
  Status write_files(uid_t as, const std::string& folder,
                     const std::vector<NewFile>& files) override;
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
  Result<shim::StartedShim> start_attempt(uid_t as, AttemptStart start) override;
  Result<UniqueFd> connect_shim(uid_t as, const std::string& attempt_folder) override;
  Result<shim::StartedAttempt> read_started(uid_t as, const std::string& attempt_folder) override;
  Result<std::vector<wire::RankExited>> read_exits(uid_t as, const std::string& attempt_folder,
                                                   int ranks) override;
  Result<int> end_leftovers(uid_t as, const std::string& attempt_folder) override;
  Status kill_shim(uid_t as, int pidfd) override;
  std::map<std::string, std::string> node_environment() override;
};

} // namespace nsa::privilege
