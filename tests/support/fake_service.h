// A Service in memory whose runs are set by tests, and a server like nsad's for it on a real unix
// socket. The server's thread does everything in FakeService. Tests access it with on_loop().
#pragma once

#include "common/net/http_server.h"
#include "common/wire/run_row.h"
#include "daemon/api/routes.h"

#include <filesystem>
#include <future>
#include <gtest/gtest.h>
#include <list>
#include <thread>
#include <unistd.h>

namespace nsa::testing_support {

// Nodes as a test sets them.
class FakeNodes : public api::Nodes {
public:
  std::vector<wire::NodeView> list() override { return nodes; }
  Result<wire::NodeToken> make_token(const api::Caller&) override {
    if (!is_head) return fail(ErrorCode::kConflict, "this nsad is no head", "set cluster.address");
    return wire::NodeToken{"nsa1-secret-print", "head:9465", 600'000'000'000};
  }
  Status remove(const std::string& node, const api::Caller&) override {
    return change(node, wire::NodeStatus::kRemoved);
  }
  Status set_drained(const std::string& node, bool drained, const api::Caller&) override {
    return change(node, drained ? wire::NodeStatus::kDrained : wire::NodeStatus::kReady);
  }
  Result<wire::DataPush> push_data(const std::string& node, const std::string& path,
                                   const api::Caller&) override {
    NSA_TRY(change(node, wire::NodeStatus::kReady));
    push.node = node;
    push.path = path;
    return push;
  }
  Result<wire::DataPush> pushed_data(const std::string& node) override {
    if (push.node != node)
      return fail(ErrorCode::kNotFound, "no data set was copied to " + node,
                  "nsactl data push " + node + " FOLDER");
    push.here_bytes = push.total_bytes;
    push.state = end_of_push;
    return push;
  }
  Result<wire::NetworkProbe> probe_network(const std::string& node,
                                           const wire::NetworkProbeRequest& wanted,
                                           const api::Caller&) override {
    NSA_TRY(change(node, wire::NodeStatus::kReady));
    NSA_TRY(change(wanted.with, wire::NodeStatus::kReady));
    probe.node = node;
    probe.with = wanted.with;
    probe.state = wire::WorkState::kRunning;
    probes.push_back(node + " " + wanted.with + (wanted.cpu ? " cpu" : "") +
                     (wanted.interface.empty() ? "" : " " + wanted.interface));
    return probe;
  }
  Result<wire::NetworkProbe> probed_network(const std::string& node) override {
    if (probe.node != node)
      return fail(ErrorCode::kNotFound, "no network was measured from node " + node);
    probe.state = probe.problem.empty() ? wire::WorkState::kDone : wire::WorkState::kFailed;
    return probe;
  }
  std::vector<wire::GpuView> gpus() override { return gpu_views; }
  Result<wire::GpuView> release_gpu(const std::string& gpu, const api::Caller&) override {
    for (wire::GpuView& view : gpu_views) {
      if (gpu != view.uuid && gpu != std::to_string(view.index)) continue;
      if (view.state != wire::GpuStatus::kQuarantine)
        return fail(ErrorCode::kConflict, "GPU " + gpu + " is not in quarantine", "nsactl gpu ls");
      view.state = wire::GpuStatus::kFree;
      view.why.clear();
      return view;
    }
    return fail(ErrorCode::kNotFound, "no node has a GPU '" + gpu + "'", "nsactl gpu ls");
  }
  void add(const std::string& name, wire::NodeRole role, wire::NodeStatus state) {
    wire::NodeView view;
    view.name = name;
    view.role = role;
    view.state = state;
    nodes.push_back(view);
  }

  std::vector<wire::NodeView> nodes;
  std::vector<wire::GpuView> gpu_views;
  bool is_head = true;
  wire::DataPush push;
  wire::NetworkProbe probe;
  std::vector<std::string> probes; // the requested probes
  wire::WorkState end_of_push = wire::WorkState::kDone;

private:
  Status change(const std::string& name, wire::NodeStatus state) {
    for (wire::NodeView& view : nodes)
      if (view.name == name) {
        view.state = state;
        return {};
      }
    return fail(ErrorCode::kNotFound, "no node is named '" + name + "'", "nsactl node ls");
  }
};

class FakeService : public api::Queries, public api::Requests {
public:
  struct Follower : api::Subscription {
    FakeService* service;
    RunId run;
    std::function<void(const wire::FollowLine&)> line;
    ~Follower() override { service->followers.remove(this); }
  };

  void submit(wire::SubmitRequest request, const api::Caller& caller,
              api::SubmitDone done) override {
    done(submit(request, caller));
  }
  tl::expected<wire::SubmitReply, api::SubmitFailure> submit(const wire::SubmitRequest& request,
                                                             const api::Caller& caller) {
    submitted.push_back(request);
    last_caller = caller;
    if (request.toml.find("broken") != std::string::npos)
      return tl::unexpected(api::SubmitFailure{
          {ErrorCode::kInvalidArgument, "run.toml has 2 mistakes", ""}, problems_next});
    if (request.dry_run)
      return wire::SubmitReply{"", request.name, kAdmissible, "2 ranks on cpu", warnings_next};
    wire::RunDetail detail;
    detail.summary.id = "kabcd";
    detail.summary.name = request.name.empty() ? "demo" : request.name;
    detail.summary.state = queue_next ? wire::RunState::kQueued : wire::RunState::kStarting;
    detail.summary.reason = queue_next ? "waits for 2 CPU slots, 1 is free" : "";
    detail.summary.inject = inject_next;
    detail.summary.user = caller.user;
    runs[detail.summary.id] = detail;
    return wire::SubmitReply{detail.summary.id, detail.summary.name, detail.summary.state,
                             detail.summary.reason, warnings_next};
  }
  MetricsSource metrics_source(const RunId&) override { return {metrics_path, {}}; }
  std::string metrics_path; // a file that the test wrote

  // Returns one run per page.
  Result<api::RunPage> list(const api::RunQuery& query, const api::Caller& caller) override {
    api::RunPage page;
    page.next = query;
    for (const auto& [id, detail] : runs) {
      if ((!query.all && detail.summary.ended_at != 0) || id <= query.row_before) continue;
      page.list.more = !page.list.items.empty();
      if (page.list.more) break;
      const wire::RunSummary run =
          owns(caller, owner_of(id)) ? detail.summary : api::says_little(detail.summary);
      page.list.items.push_back(query.rows ? wire::to_row(run).dump() : nlohmann::json(run).dump());
      page.next.row_before = id;
    }
    return page;
  }
  int64_t run_count() override { return static_cast<int64_t>(runs.size()); }
  Result<api::RunMatch> find_run(const std::string& run, const api::Caller&) override {
    api::RunMatch named, begun;
    begun.by_prefix = true;
    for (auto it = runs.rbegin(); it != runs.rend(); ++it) { // the last id is the newest
      const auto& [id, detail] = *it;
      if (id == run || run == "@last") return api::RunMatch{{{id, owner_of(id)}}, false};
      if (detail.summary.name == run) named.runs.push_back({id, owner_of(id)});
      if (id.rfind(run, 0) == 0) begun.runs.push_back({id, owner_of(id)});
    }
    if (!named.runs.empty()) return named;
    if (!begun.runs.empty()) return begun;
    return fail(ErrorCode::kNotFound, "no run '" + run + "'", "nsactl ls -a");
  }
  std::vector<wire::CandidateView> candidates(const api::RunMatch& match) override {
    std::vector<wire::CandidateView> list;
    for (const api::RunMatch::Owned& one : match.runs) {
      const wire::RunSummary& run = runs.at(one.id).summary;
      list.push_back({run.id, run.name, run.state, run.user, run.submitted_at});
    }
    return list;
  }
  void refuse(const api::Caller& caller, std::string_view verb, const std::string& run,
              int64_t owner, const Error& why) override {
    note(caller, verb, run, owner, wire::RequestResult::kRefused, why.what);
  }
  Result<std::vector<wire::AuditView>> audit(const api::AuditQuery& query) override {
    std::vector<wire::AuditView> found;
    for (const wire::AuditView& row : audited)
      if ((query.run.empty() || row.run == query.run) &&
          (!query.uid || row.uid == *query.uid || row.owner == *query.uid))
        found.push_back(row);
    return found;
  }
  Result<wire::RunSummary> run_summary(const RunId& run) override { return runs.at(run).summary; }
  void run_detail(const RunId& run, api::Done<wire::RunDetail> done) override {
    done(runs.at(run));
  }
  Result<api::EventPage> events(const api::EventQuery& query) override {
    api::EventPage page;
    page.next = query.after;
    for (const wire::EventView& event : stored_events) {
      if ((!query.run.empty() && event.run != query.run) || event.sequence <= query.after) continue;
      page.more = page.events.size() == static_cast<size_t>(query.limit);
      if (page.more) break;
      page.events.push_back(event);
      page.next = event.sequence;
    }
    return page;
  }
  Result<int64_t> events_before_last(const RunId& run, int64_t count) override {
    int64_t before = 0;
    for (auto event = stored_events.rbegin(); event != stored_events.rend(); ++event)
      if ((run.empty() || event->run == run) && count-- == 0) before = event->sequence;
    return before;
  }
  Result<std::vector<api::LogSource>> logs(const api::LogQuery& query) override {
    std::vector<api::LogSource> found;
    AttemptNumber attempt = query.attempt;
    if (attempt == 0)
      for (const api::LogSource& source : log_sources)
        attempt = std::max(attempt, source.attempt);
    for (const api::LogSource& source : log_sources)
      if (source.attempt == attempt && (query.rank < 0 || source.rank == query.rank))
        found.push_back(source);
    return found;
  }
  void checkpoints(const RunId& run, bool verify,
                   api::Done<std::vector<wire::CheckpointView>> done) override {
    auto views = runs.at(run).checkpoints;
    if (verify)
      for (wire::CheckpointView& view : views)
        view.state = wire::CheckpointState::kVerified;
    done(std::move(views));
  }
  Status stop(const RunId& run, const api::Caller& caller) override {
    note(caller, "stop", run, owner_of(run), wire::RequestResult::kDone, "");
    return end(run, wire::RunState::kStopping);
  }
  Status cancel(const RunId& run, const api::Caller& caller) override {
    note(caller, "cancel", run, owner_of(run), wire::RequestResult::kDone, "");
    return end(run, wire::RunState::kCancelled);
  }
  void resume(const RunId& run, wire::ResumeRequest request, const api::Caller&,
              api::SubmitDone done) override {
    resumed.push_back(request);
    if (request.dry_run)
      return done(wire::SubmitReply{"", runs.at(run).summary.name, kAdmissible, "", warnings_next});
    wire::RunSummary& summary = runs.at(run).summary;
    summary.state = wire::RunState::kStarting;
    ++summary.attempt;
    summary.ended_at = 0;
    done(wire::SubmitReply{run, summary.name, summary.state, "", warnings_next});
  }
  Status set(const RunId& run, const wire::SetRequest& request,
             const api::Caller& caller) override {
    set_asked.push_back(request);
    note(caller, "set", run, owner_of(run), wire::RequestResult::kDone, "");
    return {};
  }
  void attempt_spec(const RunId& run, int attempt, api::Done<nlohmann::json> done) override {
    const auto spec = attempt_specs.find(attempt);
    if (spec != attempt_specs.end()) return done(spec->second);
    done(fail(ErrorCode::kNotFound, "run " + run + " has no attempt " + std::to_string(attempt)));
  }
  Status remove(const RunId& run, const api::Caller&) override {
    if (runs.at(run).summary.ended_at == 0)
      return fail(ErrorCode::kConflict, "run " + run + " has not ended", "nsactl stop " + run);
    runs.erase(run);
    return {};
  }
  Status checkpoint_now(const RunId&, const api::Caller&) override {
    ++checkpoints_asked;
    return {};
  }
  std::unique_ptr<api::Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) override {
    auto follower = std::make_unique<Follower>();
    follower->service = this;
    follower->run = run;
    follower->line = std::move(line);
    followers.push_back(follower.get());
    if (!run.empty() && runs.count(run)) {
      wire::FollowLine first;
      first.type = wire::LineType::kState;
      first.summary = runs.at(run).summary;
      follower->line(first);
      if (first.summary.ended_at != 0) {
        first.type = wire::LineType::kEnd;
        follower->line(first);
      }
    }
    return follower;
  }
  nlohmann::json daemon_status() override { return {{"pid", ::getpid()}, {"version", "0.1.0"}}; }
  void shut_down(const api::Caller&) override { shut_down_asked = true; }

  // ---- the script's side
  // --------------------------------------------------------------------------
  void emit(const wire::FollowLine& line) {
    const auto now = followers; // a callback may end its subscription
    for (Follower* follower : now)
      if (std::find(followers.begin(), followers.end(), follower) != followers.end() &&
          (follower->run.empty() || follower->run == line.summary.id ||
           follower->run == line.event.run))
        follower->line(line);
  }
  void emit_state(const RunId& run, const std::string& state, const std::string& type = "state") {
    wire::RunSummary& summary = runs.at(run).summary;
    summary.state = ChoiceOrText<wire::RunState>(state);
    if (type == "end") summary.ended_at = 5'000'000'000;
    wire::FollowLine line;
    line.type = ChoiceOrText<wire::LineType>(type);
    line.summary = summary;
    emit(line);
  }
  void emit_event(wire::EventView event) {
    event.sequence = static_cast<int64_t>(stored_events.size()) + 1;
    stored_events.push_back(event);
    wire::FollowLine line;
    line.type = wire::LineType::kEvent;
    line.event = event;
    if (runs.count(event.run)) line.summary = runs.at(event.run).summary;
    emit(line);
  }
  // An event as a test writes it. Kind and severity are words, so a test can also use unknown ones.
  struct WordedEvent {
    int64_t sequence = 0;
    wire::Time at;
    RunId run;
    AttemptNumber attempt = 0;
    Rank rank = -1;
    std::string kind, severity, text;
    nlohmann::json detail;
  };
  void emit_event(const WordedEvent& e) {
    emit_event(wire::EventView{e.sequence, e.at, e.run, e.attempt, e.rank,
                               ChoiceOrText<wire::EventKind>(e.kind),
                               ChoiceOrText<wire::Severity>(e.severity), e.text, e.detail});
  }
  wire::RunDetail& add_run(const RunId& id, const std::string& state) {
    wire::RunDetail& detail = runs[id];
    detail.summary.id = id;
    detail.summary.name = "run-" + id;
    detail.summary.state = ChoiceOrText<wire::RunState>(state);
    detail.summary.attempt = 1;
    detail.summary.ranks = 2;
    return detail;
  }

  int64_t owner_of(const RunId& run) const {
    const auto found = owners.find(run);
    return found == owners.end() ? static_cast<int64_t>(::getuid()) : found->second;
  }
  void note(const api::Caller& caller, std::string_view verb, const std::string& run, int64_t owner,
            wire::RequestResult result, const std::string& why) {
    wire::AuditView row;
    row.uid = caller.uid;
    row.verb = verb;
    row.run = run;
    row.owner = owner;
    row.result = result;
    row.why = why;
    audited.push_back(row);
  }

  std::map<RunId, wire::RunDetail> runs;
  std::map<RunId, int64_t> owners; // of runs that belong to other users
  std::vector<wire::AuditView> audited;
  std::vector<wire::EventView> stored_events;
  std::vector<api::LogSource> log_sources;
  std::vector<wire::SubmitRequest> submitted;
  std::vector<wire::ResumeRequest> resumed;
  std::vector<std::string> warnings_next;
  std::vector<wire::SetRequest> set_asked;
  std::map<int, nlohmann::json> attempt_specs;
  std::list<Follower*> followers;
  api::Caller last_caller;
  std::string inject_next;
  std::vector<wire::ProblemView> problems_next = {
      {"run.toml", 14, 9, "train.steps", "is no number", "write steps = 60"},
      {"--set", 0, 0, "modle.layers", "unknown key", "did you mean model.layers?"}};
  int checkpoints_asked = 0;
  bool queue_next = false, shut_down_asked = false;

private:
  const ChoiceOrText<wire::RunState> kAdmissible{"admissible"};

  Status end(const RunId& run, wire::RunState state) {
    runs.at(run).summary.state = state;
    return {};
  }
};

// Serves the API of a FakeService on a separate thread.
class FakeDaemon {
public:
  explicit FakeDaemon(net::HttpLimits limits = {},
                      api::AccessRules rules = {false, ::getuid(), std::nullopt}) {
    char name[] = "/tmp/nsa-fake-XXXXXX";
    folder = ::mkdtemp(name);
    socket = folder + "/d.sock";
    routes = std::make_unique<api::Routes>(loop, service, service, nodes, rules);
    if (rules.system_mode) std::filesystem::permissions(folder, std::filesystem::perms(0711));
    auto made = net::HttpServer::listen_unix(loop, socket, rules.system_mode ? 0666 : 0600,
                                             routes->handler(), limits, routes->observer());
    EXPECT_TRUE(made) << made.error().what;
    server = std::move(*made);
    thread = std::thread([this] { loop.run(); });
  }
  ~FakeDaemon() {
    on_loop([this] {
      server.reset();
      routes.reset();
      return 0;
    });
    loop.stop();
    thread.join();
    std::filesystem::remove_all(folder);
  }
  template <class Work> std::invoke_result_t<Work> on_loop(Work work) {
    std::promise<std::invoke_result_t<Work>> result;
    loop.post([&] { result.set_value(work()); });
    return result.get_future().get();
  }
  // Waits until `condition` holds. The server's thread evaluates it.
  template <class Condition> bool wait_until(Condition condition) {
    for (int i = 0; i < 12'000; ++i) { // one minute: only a broken server takes so long
      if (on_loop(condition)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::string folder, socket;
  net::EventLoop loop;
  FakeService service;
  FakeNodes nodes;
  std::unique_ptr<api::Routes> routes;
  std::unique_ptr<net::HttpServer> server;
  std::thread thread;
};

} // namespace nsa::testing_support
