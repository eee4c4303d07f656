// The Launcher of a head. It starts the parts of an attempt on several nodes in two phases, and
// passes attempts on this node alone to another Launcher. First every node says whether it can take
// part; then all start. If a node cannot, the error names it with its reason, and nothing has been
// started. A node that does not see the run's folder fetches what its ranks read there before it
// agrees.
//
// All calls are on the loop's thread. To stop it, destroy it.
#pragma once

#include "common/net/offload.h"
#include "daemon/commands/launcher.h"
#include "daemon/parts/offers.h"
#include "daemon/parts/remote_nodes.h"
#include "daemon/state/parts.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::parts {

class NodesLauncher final : public control::Launcher {
public:
  struct Options {
    std::shared_ptr<privilege::Host> host;
    double orphan_seconds = 0; // value that shims of other nodes get
    // The address that a node called from, "10.0.0.7:40122". Other nodes reach it there, too.
    std::function<std::string(const std::string& node)> address_of = {};
    Offers* offers = nullptr;
    std::function<std::vector<RunId>()> open_runs = {};
    // Whether the state still waits for this attempt to start.
    std::function<bool(const control::AttemptKey&)> is_wanted = {};
    // Sets a text about the run that is shown until the attempt has started.
    std::function<void(const RunId&, const std::string& text)> waits = {};
    // Called when a node has fetched what it needs.
    std::function<void(const control::AttemptKey&, const std::string& node,
                       const transfer::Received&)>
        fetched = {};
  };
  NodesLauncher(control::Launcher& here, RemoteNodes& nodes, net::Offload& calls, Options options)
      : here_(here), nodes_(nodes), calls_(calls), options_(std::move(options)) {}

  void list_gpus(control::Done<gpu::Gpus> done) override { here_.list_gpus(std::move(done)); }
  void choose_checkpoint(const control::RunRecord& record,
                         std::vector<manifest::Distrust> distrusted,
                         control::Done<manifest::Choice> done) override {
    here_.choose_checkpoint(record, std::move(distrusted), std::move(done));
  }
  // Fails with kUnavailable if a node is not connected; the run waits for it.
  Result<privilege::AttemptStart> prepare(const state::Run& run,
                                          const control::RunRecord& record) override;
  // Fails with kUnavailable if a node has been disconnected or leaves; nothing has been started.
  void start(const control::RunRecord& record, privilege::AttemptStart start,
             control::Done<shim::StartedShim> done) override;
  void read_started(const control::RunRecord& record, AttemptNumber attempt,
                    control::Done<shim::StartedAttempt> done) override {
    here_.read_started(record, attempt, std::move(done));
  }
  void write_summary(const store::RunRow& row, const nlohmann::json& summary,
                     std::function<void(const Status&)> done) override {
    here_.write_summary(row, summary, std::move(done));
  }

private:
  struct Start;
  void prepare_nodes(const std::shared_ptr<Start>& start);
  void offer_folders(const std::shared_ptr<Start>& start, const std::string& node,
                     Preparation& wanted);
  void withdraw(Start& start);
  void on_prepared(const std::shared_ptr<Start>& start, size_t number,
                   const Result<nlohmann::json>& answer);
  void start_nodes(const std::shared_ptr<Start>& start);
  void start_here(const std::shared_ptr<Start>& start);
  static std::vector<size_t> others_of(const Start& start);
  std::string meeting_of(const Start& start, size_t number) const;
  static void tell_started(const Start& start);
  void give_up(const std::shared_ptr<Start>& start, Error why);

  control::Launcher& here_;
  RemoteNodes& nodes_;
  net::Offload& calls_;
  Options options_;
};

// The part's share of a plan for all ranks; only the part's GPUs are visible. `meeting` replaces
// the rendezvous in the ranks' arguments.
wire::LaunchPlan plan_of_part(const wire::LaunchPlan& whole, const std::vector<state::Part>& parts,
                              size_t number, const std::string& meeting);

// Removes the variables of the head's own node, so that the part's node sets its own. Variables
// that a toggle of the run sets stay.
void leave_out_node_variables(wire::LaunchPlan& plan, const spec::RunSpec& spec);

// The kind of an event, and its text.
inline constexpr std::string_view kCheckpointFetched = "checkpoint_fetched";
std::string fetched_text(const std::string& node, const transfer::Received& received);
// "node bee fetches checkpoints/step-00000020: 45 % of 1.2 GiB"
std::string fetching_text(const std::string& node, const std::string& name, uint64_t here,
                          uint64_t total);

} // namespace nsa::parts
