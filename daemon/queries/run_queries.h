// What users see: lists, details, events, logs, checkpoints, followers. It changes no run. Only a
// verification of checkpoints writes its result to the ledger.
//
// All calls are on the loop's thread, which opens only nsad's own files. `readers` and `workers`
// read the files that submitters and ranks own. To stop it, destroy it.
#pragma once

#include "common/net/offload.h"
#include "daemon/api/service.h"
#include "daemon/privilege/host.h"
#include "daemon/queries/followers.h"
#include "daemon/queries/stored_runs.h"
#include "daemon/run_metrics/run_metrics.h"
#include "daemon/store/ledger.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nsa::control {

struct QueryOptions {
  std::string state_folder;
  std::function<nlohmann::json()> daemon_status;
  std::function<wire::JobView(const RunId&)> job_of = {}; // the run's job on another scheduler
};

class RunQueries final : public api::Queries {
public:
  // Collaborators; all of them outlive this object.
  struct Tools {
    Clock& clock;
    RunLoop& loop;
    RunMetrics& metrics;
    store::Ledger& ledger;
    std::shared_ptr<privilege::Host> host;
    net::Offload& readers; // short reads in bounded time
    net::Offload& workers; // long work
  };
  RunQueries(Tools tools, QueryOptions options)
      : tools_(std::move(tools)), options_(std::move(options)), stored_(tools_.ledger),
        followers_(tools_.clock) {}

  Result<api::RunPage> list(const api::RunQuery& query, const api::Caller& caller) override;
  int64_t run_count() override { return tools_.ledger.run_count().value_or(0); }
  Result<api::RunMatch> find_run(const std::string& run, const api::Caller& caller) override;
  std::vector<wire::CandidateView> candidates(const api::RunMatch& match) override;
  Result<wire::RunSummary> run_summary(const RunId& run) override;
  void run_detail(const RunId& run, api::Done<wire::RunDetail> done) override;
  Result<api::EventPage> events(const api::EventQuery& query) override;
  Result<int64_t> events_before_last(const RunId& run, int64_t count) override;
  Result<std::vector<api::LogSource>> logs(const api::LogQuery& query) override;
  MetricsSource metrics_source(const RunId& run) override;
  void attempt_spec(const RunId& run, int attempt, api::Done<nlohmann::json> done) override;
  void checkpoints(const RunId& run, bool verify,
                   api::Done<std::vector<wire::CheckpointView>> done) override;
  Result<std::vector<wire::AuditView>> audit(const api::AuditQuery& query) override;
  std::unique_ptr<api::Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) override;
  nlohmann::json daemon_status() override { return options_.daemon_status(); }

  // Forwards what happened to followers.
  void on_committed(const Committed& done);
  void on_step(const RunId& run, const wire::RankStep& step) { followers_.tell_step(run, step); }
  void on_closed(const wire::RunSummary& last) { followers_.tell_end(last); }

private:
  const state::Run* find_open(const RunId& run) const;
  std::string run_folder(const RunId& run) const;
  Result<AttemptNumber> known_attempt(const RunId& run, int wanted);
  Result<wire::RunDetail> detail_of(const RunId& run);
  Status note_verified(const RunId& run, const std::vector<store::CheckpointRow>& checkpoints);
  void tell_now(const Followers::Follower& follower);

  Tools tools_;
  QueryOptions options_;
  StoredRuns stored_;
  Followers followers_;
};

} // namespace nsa::control
