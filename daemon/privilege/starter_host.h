// Host through nsa-starter, for nsad in system mode. Every call is a request with its own socket
// for the answer, so calls of several threads do not wait for each other. Each call ends at its
// time limit. When the starter ends, every call fails and socket() becomes readable. nsad must then
// exit, and its service manager starts both again.
#pragma once

#include "daemon/privilege/host.h"
#include "daemon/privilege/protocol.h"

namespace nsa::privilege {

class StarterHost final : public Host {
public:
  explicit StarterHost(UniqueFd socket) : socket_(std::move(socket)) {}
  int socket() const { return socket_.get(); }

  // Checks that this host lets the starter do its work. The error says what forbids it.
  Status probe();

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

private:
  Result<Answer> request(Verb verb, uid_t as, Duration limit, std::vector<int> descriptors);
  Result<Answer> job(uid_t as, const std::string& call, nlohmann::json arguments,
                     Duration limit = std::chrono::seconds(60), int descriptor = -1);
  UniqueFd socket_;
};

} // namespace nsa::privilege
