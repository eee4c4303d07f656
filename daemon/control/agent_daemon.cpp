#include "daemon/control/agent_daemon.h"

#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/net/http_server.h"
#include "common/net/offload.h"
#include "common/wire/node_view.h"
#include "daemon/api/access.h"
#include "daemon/api/reply.h"
#include "daemon/cluster/agent.h"
#include "daemon/control/notify.h"
#include "daemon/control/state_lock.h"
#include "daemon/gpu/nvml.h"
#include "daemon/nodes/node_facts.h"
#include "daemon/parts/part_server.h"
#include "daemon/proc/node_readings.h"

#include <csignal>
#include <filesystem>
#include <unistd.h>
#include <utility>

namespace nsa::control {

namespace {

// Longest pause between two calls. Each pause is at least half of it. All nodes reconnect to a
// restarted head within two seconds.
constexpr Duration kLongestPause = std::chrono::milliseconds(1500);

std::filesystem::path folder_of(const std::string& state) {
  return std::filesystem::path(state) / "cluster";
}

std::string how_to_join(const std::string& head) {
  return "on the head: nsactl node token; here: nsad --join " + head + " --token TOKEN";
}

// An agent must not use a state folder in which a standalone nsad has stored runs.
Status refuse_folder_of_daemon(const std::string& state) {
  if (::access((state + "/ledger.db").c_str(), F_OK) != 0) return {};
  return fail(
      ErrorCode::kConflict, state + " holds the runs of a nsad of its own",
      "give the agent a folder: nsad --join HEAD --state-folder DIR --socket DIR/nsad.sock");
}

// Waits for the head's answer, for as long as a handshake may take.
Result<cluster::Membership> join(net::EventLoop& loop, const cluster::HeadAddress& head,
                                 const cluster::JoinToken& token, const std::string& node,
                                 const std::filesystem::path& folder) {
  constexpr Duration kLimit = std::chrono::seconds(30);
  std::optional<Result<cluster::Membership>> result;
  const auto joining =
      cluster::join_cluster(loop, head, token, node, folder, [&](Result<cluster::Membership> made) {
        result = std::move(made);
        loop.stop();
      });
  (void)loop.run_for(kLimit);
  if (!result)
    return fail(ErrorCode::kUnavailable, "the head " + head.text() + " does not answer",
                "nsactl daemon logs on the head");
  if (!*result && result->error().code == ErrorCode::kUnavailable && result->error().next.empty())
    result->error().next = "nsactl node ls on the head shows its address and port";
  return std::move(*result);
}

// Joins as an agent of a job. If the scheduler has restarted the job, the token may be used up, so
// this retries until the head has written the next one.
Result<cluster::Membership> join_of_job(net::EventLoop& loop, const JoinOptions& wanted,
                                        const cluster::HeadAddress& head,
                                        const std::filesystem::path& folder) {
  constexpr Duration kLimit = std::chrono::minutes(2), kPause = std::chrono::seconds(1);
  constexpr size_t kLongest = 4096;
  const MonotonicTime end = MonotonicTime::now() + kLimit;
  std::string text = wanted.token;
  for (;;) {
    NSA_TRY_ASSIGN(const cluster::JoinToken token, cluster::JoinToken::parse(text));
    auto joined = join(loop, head, token, wanted.name, folder);
    if (joined || joined.error().code == ErrorCode::kConflict || MonotonicTime::now() > end)
      return joined;
    log::info("agent", "no place in the cluster yet", {{"why", joined.error().what}});
    (void)loop.run_for(kPause);
    if (auto next = read_file(wanted.token_file, kLongest)) text = std::string(trim(*next));
  }
}

// Returns this node's membership: the stored one, or a new one if the token is not the one that
// made it.
Result<cluster::Membership> membership_of(net::EventLoop& loop, const JoinOptions& wanted,
                                          const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(const cluster::HeadAddress head, cluster::HeadAddress::parse(wanted.head));
  auto stored = cluster::Membership::load(folder);
  if (!stored && stored.error().code != ErrorCode::kNotFound && wanted.token.empty())
    return fail(std::move(stored).error());
  if (wanted.token.empty() && !stored)
    return fail(ErrorCode::kInvalidArgument, "this node has not joined " + head.text() + " yet",
                how_to_join(head.text()));
  if (!wanted.token.empty()) {
    NSA_TRY_ASSIGN(const cluster::JoinToken token, cluster::JoinToken::parse(wanted.token));
    if (!stored && !wanted.run.empty()) return join_of_job(loop, wanted, head, folder);
    if (!stored || stored->joined_by != token.digest())
      return join(loop, head, token, wanted.name.empty() ? proc::host_name() : wanted.name, folder);
  }
  if (!wanted.name.empty() && wanted.name != stored->node)
    return fail(ErrorCode::kConflict,
                "this node has joined as " + stored->node + ", not as " + wanted.name,
                "leave out --name; for another name join again: " + how_to_join(head.text()));
  // The handshake checks that the authority is still the same.
  if (stored->head.text() != head.text()) {
    stored->head = head;
    NSA_TRY(stored->save(folder));
  }
  return stored;
}

// Answers nsactl on the agent's own node. An agent answers only about itself.
class AgentApi {
public:
  AgentApi(net::EventLoop& loop, const DaemonOptions& options, cluster::Membership membership)
      : loop_(loop), options_(options), membership_(std::move(membership)),
        started_at_(WallTime::now()),
        parts_(loop, {options.paths.state, membership_.head.host, options.config,
                      std::filesystem::path(options.program).parent_path().string(),
                      [this](const wire::Frame& frame) {
                        return agent_ ? agent_->send(frame)
                                      : fail(ErrorCode::kUnavailable, "there is no link yet");
                      },
                      [this] { return agent_ ? agent_->queued_bytes() : 0; },
                      [this] {
                        if (leaving_ && parts_.is_empty()) loop_.stop();
                      }}) {}

  // Ends the agent when its job ends. The ranks first write a checkpoint and the head is told. The
  // scheduler, which sent the warning, kills what takes too long.
  void leave() {
    if (options_.join.run.empty() || parts_.is_empty()) return loop_.stop();
    if (std::exchange(leaving_, true)) return;
    log::info("agent", "the job ends: the ranks write a checkpoint and leave",
              {{"run", options_.join.run}});
    parts_.stop_ranks();
  }

  void start_agent(cluster::NodeHello facts) {
    cluster::Agent::Options agent;
    agent.folder = folder_of(options_.paths.state);
    agent.facts = std::move(facts);
    agent.longest_pause = kLongestPause;
    cluster::Agent::Events events;
    events.ready = [this] {
      problem_.clear();
      parts_.on_ready();
      log::info("agent", "the head hears this node", {{"head", membership_.head.text()}});
    };
    events.cut = [this](const Error& why) {
      problem_ = why.what;
      parts_.on_cut();
      log::warning("agent", "no link to the head; calling again", {{"why", why.what}});
    };
    events.ended = [this](const Error& why) {
      ended_ = why;
      // The head considers the job over, so nobody would adopt the ranks that remain.
      if (!options_.join.run.empty()) parts_.kill_ranks();
      loop_.stop();
    };
    events.frame = [this](const wire::Frame& frame) { parts_.take(frame); };
    agent_ = std::make_unique<cluster::Agent>(loop_, membership_, agent, events);
  }

  net::Response handle(const net::Request& request) {
    if (!api::may_connect(request.peer, {false, ::getuid(), std::nullopt}))
      return api::reply_error({ErrorCode::kPermission, "this agent serves its own user only", ""});
    if (request.method == "GET" && request.path == "/v1/version")
      return api::reply({{"api", wire::kApiVersion},
                         {"version", build_info().version},
                         {"commit", build_info().commit},
                         {"compiler", build_info().compiler}});
    if (request.method == "GET" && request.path == "/v1/daemon") return api::reply(status());
    if (request.method == "POST" && request.path == "/v1/daemon/stop") {
      loop_.post([this] { loop_.stop(); }); // after the reply is sent
      return api::reply({{"stopping", true}});
    }
    return api::reply_error({ErrorCode::kConflict,
                             "this node is an agent of " + membership_.head.text() +
                                 ", which alone answers about runs and nodes",
                             "run this command on the head; here: nsactl daemon status"});
  }

  parts::PartServer& parts() { return parts_; }
  const std::optional<Error>& ended() const { return ended_; }
  const std::string& node() const { return membership_.node; }

private:
  nlohmann::json status() const {
    const bool is_ready = agent_ && agent_->is_ready();
    const tls::Certificate& certificate =
        agent_ ? agent_->membership().identity.certificate : membership_.identity.certificate;
    return {{"pid", ::getpid()},
            {"version", build_info().version},
            {"commit", build_info().commit},
            {"started_at", wire::Time(started_at_.nanoseconds)},
            {"state_folder", options_.paths.state},
            {"socket", options_.paths.socket},
            {"role", name_of(wire::NodeRole::kAgent)},
            {"node", membership_.node},
            {"head", membership_.head.text()},
            {"connected", is_ready},
            {"problem", is_ready ? "" : problem_},
            {"certificate_expires_at", wire::Time(certificate.expires().nanoseconds)},
            {"clock_offset_seconds", agent_ ? to_seconds(agent_->clock_offset()) : 0.0},
            {"round_trip_seconds", agent_ ? to_seconds(agent_->round_trip()) : 0.0}};
  }

  net::EventLoop& loop_;
  const DaemonOptions& options_;
  cluster::Membership membership_;
  WallTime started_at_;
  std::string problem_ = "it has not called yet";
  std::optional<Error> ended_;
  bool leaving_ = false;
  parts::PartServer parts_;
  std::unique_ptr<cluster::Agent> agent_;
};

} // namespace

Status refuse_folder_of_agent(const std::string& state_folder) {
  const auto file = folder_of(state_folder) / "membership.json";
  if (::access(file.c_str(), F_OK) != 0) return {};
  const auto membership = cluster::Membership::load(folder_of(state_folder));
  const std::string head = membership ? membership->head.text() : "HEAD:PORT";
  return fail(ErrorCode::kConflict, "this node is an agent of " + head,
              "start it with nsad --join " + head + "; to make it a node of its own, delete " +
                  file.string());
}

Status run_agent(const DaemonOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const std::string& state = options.paths.state;
  NSA_TRY(make_folder(state, 0700));
  NSA_TRY_ASSIGN(const UniqueFd lock, lock_state_folder(state));
  NSA_TRY(refuse_folder_of_daemon(state));
  NSA_TRY(make_folder(state + "/runs", 0750));
  net::EventLoop loop;
  NSA_TRY_ASSIGN(cluster::Membership membership,
                 membership_of(loop, options.join, folder_of(state)));
  AgentApi agent(loop, options, std::move(membership));
  const std::filesystem::path socket(options.paths.socket);
  NSA_TRY(make_folder(socket.parent_path(), 0700));
  NSA_TRY_ASSIGN(const auto served, net::HttpServer::listen_unix(loop, socket.string(), 0600,
                                                                 [&](const net::Request& request) {
                                                                   net::Response response =
                                                                       agent.handle(request);
                                                                   response.route = "agent";
                                                                   return response;
                                                                 }));
  if (auto published = net::publish_socket(options.paths); !published)
    log::warning("agent", "the socket is not linked beside the state",
                 {{"why", published.error().what}});
  const net::Watch signals = loop.when_signalled({SIGTERM, SIGINT, SIGHUP}, [&](int signal) {
    if (signal != SIGHUP) agent.leave();
  });
  net::Offload readers(loop);
  agent.parts().look_at_gpus(
      [&](Done<gpu::Gpus> done) {
        readers.run({"", "the GPUs"}, [] { return gpu::list_gpus(); }, std::move(done));
      },
      [&](const std::vector<std::string>& gpus) {
        cluster::NodeHello facts = read_node_facts();
        facts.cpu_slots = options.config.resources.cpu_slots;
        facts.run = options.join.run;
        facts.gpus = gpus;
        agent.start_agent(std::move(facts));
      });
  log::info("agent", "ready",
            {{"version", build_info().version}, {"node", agent.node()}, {"state", state}});
  notify_service_manager("READY=1");
  loop.run();
  notify_service_manager("STOPPING=1");
  if (agent.ended()) return fail(*agent.ended());
  return {};
}

} // namespace nsa::control
