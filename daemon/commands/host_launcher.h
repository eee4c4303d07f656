// The real Launcher. It calls privilege::Host as the submitter, on other threads. It opens no file
// itself and only checks that the worker program exists. Call it on the loop's thread.
#pragma once

#include "common/net/offload.h"
#include "common/spec/node_spec.h"
#include "daemon/commands/launcher.h"

#include <map>
#include <memory>
#include <string>

namespace nsa::control {

struct HostLauncherOptions {
  std::shared_ptr<privilege::Host> host;
  std::string state_folder;
  spec::NodeSpec config;
  std::string program_folder; // folder of nsad, nsa-worker and nsa-shim
  // Command line of nsad; if empty, shims do not restart it.
  std::vector<std::string> restart_daemon;
};

class HostLauncher final : public Launcher {
public:
  // `workers` run jobs that read gigabytes or ask the driver. `calls` run jobs that an attempt
  // waits for.
  HostLauncher(HostLauncherOptions options, net::Offload& workers, net::Offload& calls)
      : options_(std::move(options)), workers_(workers), calls_(calls) {}

  void list_gpus(Done<gpu::Gpus> done) override;
  void choose_checkpoint(const RunRecord& record, std::vector<manifest::Distrust> distrusted,
                         Done<manifest::Choice> done) override;
  Result<privilege::AttemptStart> prepare(const state::Run& run, const RunRecord& record) override;
  void start(const RunRecord& record, privilege::AttemptStart start,
             Done<shim::StartedShim> done) override;
  void read_started(const RunRecord& record, AttemptNumber attempt,
                    Done<shim::StartedAttempt> done) override;
  void write_summary(const store::RunRow& row, const nlohmann::json& summary,
                     std::function<void(const Status&)> done) override;

  // Returns the programs that an attempt consists of: name -> file.
  std::map<std::string, std::string> programs() const;

private:
  std::string worker() const;
  HostLauncherOptions options_;
  net::Offload& workers_;
  net::Offload& calls_;
};

uid_t uid_of(const store::RunRow& row); // the submitter's uid
// Describes a job on files of the run's submitter, such as "the start of run k3fm2".
net::Offload::Job job_of(const store::RunRow& row, const std::string& what);

} // namespace nsa::control
