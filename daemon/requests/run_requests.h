// The requests of users: to submit, stop, resume and remove runs. It judges a request and makes an
// event of it; the state machine does the rest. Every request leaves a row in the audit.
//
// All calls are on the loop's thread, which opens only nsad's own files. `readers` read run files,
// data sets and folders of runs; `workers` delete them. To stop it, destroy it.
#pragma once

#include "common/net/offload.h"
#include "daemon/api/service.h"
#include "daemon/commands/slots.h"
#include "daemon/privilege/host.h"
#include "daemon/requests/admission.h"
#include "daemon/run_metrics/run_metrics.h"
#include "daemon/store/ledger.h"
#include "daemon/supervision/shim_connection.h"

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace nsa::control {

struct RequestOptions {
  std::string state_folder;
  std::shared_ptr<WorkerCheck> worker;
  std::function<void()> shut_down; // ends the program
  bool is_head = false;            // nodes may join this nsad
  // Slots of the nodes that have joined, are connected and take runs.
  std::function<std::map<std::string, NodePlaces>()> other_nodes = {};
  // Other schedulers: whether one can be used, and the job text of a run for it.
  struct Engines {
    std::function<Status(spec::EngineName)> check;
    std::function<Result<std::string>(const spec::RunSpec&)> text;
  } engines = {};
};

class RunRequests final : public api::Requests {
public:
  // Collaborators; all of them outlive this object.
  struct Tools {
    Clock& clock;
    RunLoop& loop;
    RunMetrics& metrics;
    store::Ledger& ledger;
    SlotPool& slots;
    ShimConnections& connections;
    std::shared_ptr<privilege::Host> host;
    net::Offload& readers; // short reads in bounded time
    net::Offload& workers; // long work
  };
  RunRequests(Tools tools, RequestOptions options)
      : tools_(std::move(tools)), options_(std::move(options)), random_(std::random_device{}()) {}

  void submit(wire::SubmitRequest request, const api::Caller& caller,
              api::SubmitDone done) override;
  void refuse(const api::Caller& caller, std::string_view verb, const std::string& run,
              int64_t owner, const Error& why) override;
  Status stop(const RunId& run, const api::Caller& caller) override;
  Status cancel(const RunId& run, const api::Caller& caller) override;
  void resume(const RunId& run, wire::ResumeRequest request, const api::Caller& caller,
              api::SubmitDone done) override;
  Status remove(const RunId& run, const api::Caller& caller) override;
  Status set(const RunId& run, const wire::SetRequest& request, const api::Caller& caller) override;
  Status checkpoint_now(const RunId& run, const api::Caller& caller) override;
  void shut_down(const api::Caller& caller) override;

private:
  const state::Run* find_open(const RunId& run) const;
  std::string run_folder(const RunId& run) const;
  // Fails with kConflict while the run is open, and with kUnavailable in the short time between its
  // end and its closing.
  Status require_ended(const RunId& run, const std::string& verb) const;
  NodeCapacity capacity() const;
  // The run that `origin` names, if the caller may use its weights.
  tl::expected<Parent, api::SubmitFailure> parent_of(const spec::Origin& origin,
                                                     const api::Caller& caller);
  // Accepts an admitted run that begins with the weights of another, if they fit. First it links or
  // copies the checkpoint into the run's folder.
  void begin_from(const RunId& id, RunFile file, wire::SubmitRequest request, Admitted admitted,
                  const api::Caller& caller, api::SubmitDone done);
  tl::expected<wire::SubmitReply, api::SubmitFailure> accept(const RunId& id,
                                                             const wire::SubmitRequest& request,
                                                             Admitted admitted,
                                                             const api::Caller& caller);
  tl::expected<wire::SubmitReply, api::SubmitFailure>
  dry_reply(const spec::RunSpec& spec, std::vector<std::string> warnings) const;
  Status may_resume(const RunId& id, const std::vector<std::string>& overrides) const;
  tl::expected<wire::SubmitReply, api::SubmitFailure>
  go_on(const RunId& id, const wire::ResumeRequest& request,
        const std::vector<std::string>& overrides, Resumable resumable, const api::Caller& caller);
  // Adds a row to the audit. It is written with the rest of the batch: call it before flush().
  void note_request(const api::Caller& caller, std::string_view verb, const std::string& run,
                    int64_t owner, const Error* why = nullptr);
  // Audits a refusal. A request that was carried out has its row already.
  Status audited(const api::Caller& caller, std::string_view verb, const RunId& run, Status done);
  api::SubmitDone audited(const api::Caller& caller, std::string_view verb, const RunId& run,
                          api::SubmitDone done);
  Status request_checkpoint(const RunId& run, const api::Caller& caller);
  Status erase(const RunId& run, const api::Caller& caller);
  Status change(const RunId& run, const std::vector<std::string>& overrides,
                const api::Caller& caller);
  Status request(const RunId& run, const api::Caller& caller, std::string_view verb,
                 state::EventBody body);
  wire::SubmitReply reply_of(const RunId& run);
  // Deletes a folder in the background, as the user who owns it.
  void delete_folder(net::Offload::Job job, uid_t as, const std::string& folder);
  // Drops 11 bits, so that every JSON reader can represent the number.
  uint64_t jitter_seed() { return random_() >> 11; }

  Tools tools_;
  RequestOptions options_;
  std::mt19937_64 random_;
};

} // namespace nsa::control
