#include "daemon/control/daemon.h"

#include "common/base/build_info.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/http_server.h"
#include "common/net/unix_socket.h"
#include "daemon/api/metrics_route.h"
#include "daemon/api/routes.h"
#include "daemon/control/agent_daemon.h"
#include "daemon/control/config.h"
#include "daemon/control/control_plane.h"
#include "daemon/control/notify.h"
#include "daemon/control/state_lock.h"
#include "daemon/proc/cgroup.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

namespace nsa::control {

namespace {

constexpr Duration kFinishLimit = std::chrono::seconds(2);

// nsad needs a few descriptors for each rank of a run.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

void say_what_was_opened(const store::Opened& opened) {
  if (!opened.moved_aside.empty())
    log::error("control", "the ledger was damaged and moved aside",
               {{"file", opened.moved_aside},
                {"restored", opened.restored.empty() ? "nothing" : opened.restored}});
  else if (!opened.restored.empty())
    log::error("control", "the ledger had gone", {{"restored", opened.restored}});
  if (opened.schema_from != 0 && opened.schema_from != opened.schema_to)
    log::info(
        "control", "ledger upgraded",
        {{"from", std::to_string(opened.schema_from)}, {"to", std::to_string(opened.schema_to)}});
}

// Listens on a unix socket or a TCP port, and tells the control plane the address.
Result<std::unique_ptr<net::HttpServer>> serve_metrics(const DaemonOptions& options,
                                                       net::EventLoop& loop, ControlPlane& control,
                                                       api::Routes& routes) {
  const spec::NodeMetricsSection& wanted = options.config.metrics;
  NSA_TRY_ASSIGN(const std::string token, metrics_token_of(options.config));
  const auto handler = api::metrics_handler([&] { return control.snapshot(routes.counts()); },
                                            {.check_host = wanted.socket.empty(), .token = token});
  if (!wanted.socket.empty()) {
    NSA_TRY_ASSIGN(auto server, net::HttpServer::listen_unix(
                                    loop, wanted.socket, options.system_mode ? 0660 : 0600, handler,
                                    api::metrics_limits(), routes.observer()));
    control.set_metrics_address("unix:" + wanted.socket);
    return server;
  }
  NSA_TRY_ASSIGN(auto server, net::HttpServer::listen_tcp(
                                  loop, wanted.address, static_cast<uint16_t>(wanted.port), handler,
                                  api::metrics_limits(), routes.observer()));
  control.set_metrics_address(wanted.address + ":" + std::to_string(server->port()));
  return server;
}

ControlOptions control_options(const DaemonOptions& options, MonotonicTime started,
                               std::function<void()> shut_down) {
  ControlOptions wanted;
  wanted.host = options.host;
  wanted.started = started;
  wanted.system_mode = options.system_mode;
  wanted.state_folder = options.paths.state;
  wanted.socket = options.paths.socket;
  wanted.config = options.config;
  wanted.program_folder = std::filesystem::path(options.program).parent_path().string();
  if (!options.system_mode && options.config.supervision.restart_daemon) {
    wanted.restart_daemon = {options.program};
    const std::vector<std::string>& given = options.arguments;
    wanted.restart_daemon.insert(wanted.restart_daemon.end(), given.begin(), given.end());
    // If a shim starts nsad, standard error is the shim's log, in which nobody looks for nsad's.
    if (std::find(given.begin(), given.end(), "--log") == given.end())
      wanted.restart_daemon.insert(wanted.restart_daemon.end(), {"--log", options.paths.log});
  }
  wanted.shut_down = std::move(shut_down);
  return wanted;
}

// Ends nsad after the loop has stopped, on request or because something that nsad needs is lost.
Status leave(ControlPlane& control, bool starter_gone, const std::string& state) {
  if (starter_gone) {
    control.say_goodbye();
    return fail(ErrorCode::kUnavailable, "nsa-starter has ended, so no run can be started",
                "the log says why; start nsad again: systemctl restart nsad");
  }
  if (control.ledger_damaged())
    return fail(ErrorCode::kCorrupt, "the ledger in " + state + " is damaged",
                "start nsad again: it restores the newest backup and adopts live runs");
  if (control.rescue_gone_ledger())
    return fail(ErrorCode::kCorrupt, "the ledger has gone from " + state,
                "start nsad again: it restores the backup that was just written");
  control.finish_ended_runs(kFinishLimit);
  control.say_goodbye();
  return {};
}

} // namespace

Status run_daemon(const DaemonOptions& options) {
  const MonotonicTime started = MonotonicTime::now();
  raise_descriptor_limit();
  ::mallopt(M_ARENA_MAX, 1); // readers run rarely, so one arena suffices and its memory is reused
  ::signal(SIGPIPE, SIG_IGN);
  const std::string& state = options.paths.state;
  if (auto made = make_folder(state, 0700); !made) {
    made.error().next = "name a folder that can be made: --state-folder DIR";
    return made;
  }
  if (options.config.supervision.cgroup_root.empty())
    if (auto moved = proc::leave_cgroup_root(); !moved)
      log::warning("control", "attempts go without limits of processes and memory",
                   {{"why", moved.error().what}});
  NSA_TRY_ASSIGN(const UniqueFd lock, lock_state_folder(state));
  NSA_TRY(refuse_folder_of_agent(state));
  NSA_TRY(make_folder(state + "/runs", 0750));
  NSA_TRY_ASSIGN(
      store::Ledger ledger,
      store::Ledger::open({state, static_cast<uint64_t>(options.config.storage.reserve_mib) << 20},
                          WallTime::now()));
  say_what_was_opened(ledger.opened());
  NSA_TRY_ASSIGN(store::Telemetry telemetry, store::Telemetry::open(state));

  net::EventLoop loop;
  ControlPlane control(loop, std::move(ledger), std::move(telemetry),
                       control_options(options, started, [&loop] { loop.stop(); }));

  NSA_TRY_ASSIGN(const auto administrators, administrators_of(options.config));
  api::Routes routes(loop, control.queries(), control.requests(), control.nodes(),
                     {options.system_mode, ::getuid(), administrators}, state + "/curves");
  const std::filesystem::path socket(options.paths.socket);
  NSA_TRY(make_folder(socket.parent_path(), options.system_mode ? 0755 : 0700));
  const auto api =
      net::HttpServer::listen_unix(loop, socket.string(), options.system_mode ? 0660 : 0600,
                                   routes.handler(), {}, routes.observer());
  if (!api) {
    Error error = api.error();
    if (error.next.empty()) error.next = "name a path where a socket can be made: --socket PATH";
    return fail(std::move(error));
  }
  if (auto published = net::publish_socket(options.paths); !published)
    log::warning("control", "the socket is not linked beside the state",
                 {{"why", published.error().what}});

  std::unique_ptr<net::HttpServer> metrics;
  if (options.config.metrics.enabled) {
    auto listening = serve_metrics(options, loop, control, routes);
    // A taken port does not stop nsad, because its ranks still need supervision. The log and
    // `nsactl daemon status` show it.
    if (listening)
      metrics = std::move(*listening);
    else
      log::warning("control", "no /metrics", {{"why", listening.error().what}});
  }

  const net::Watch signals = loop.when_signalled({SIGTERM, SIGINT, SIGHUP}, [&](int signal) {
    if (signal == SIGHUP) return; // the terminal was closed; nsad does not re-read its settings
    log::info("control", "leaving; ranks continue under their shims",
              {{"signal", std::to_string(signal)}});
    loop.stop();
  });
  bool starter_gone = false;
  net::Watch starter;
  if (options.starter_socket >= 0)
    starter = loop.when_readable(options.starter_socket, [&] {
      starter_gone = true;
      loop.stop();
    });
  NSA_TRY(control.start());
  log::info("control", "ready",
            {{"version", build_info().version}, {"state", state}, {"socket", socket.string()}});
  notify_service_manager("READY=1");
  loop.run();
  notify_service_manager("STOPPING=1");
  return leave(control, starter_gone, state);
}

} // namespace nsa::control
