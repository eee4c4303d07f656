#include "daemon/api/routes.h"

#include "common/base/build_info.h"
#include "common/base/text.h"
#include "common/manifest/manifest.h"
#include "common/wire/run_row.h"
#include "daemon/api/reply.h"
#include "daemon/metrics/render.h"

#include <charconv>
#include <filesystem>
#include <pwd.h>

namespace nsa::api {

namespace {

// nsactl and nsad of different versions meet during an upgrade: a newer client is told what to do,
// and may still ask for the version and stop this daemon.
std::optional<net::Response> check_version(const Call& call, const net::Request& request) {
  const auto header = request.header.find("nsa-api");
  if (header == request.header.end()) return std::nullopt; // curl
  int version = 0;
  const std::string& text = header->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc{} || end != text.data() + text.size() || version < 1)
    return reply_error(
        {ErrorCode::kInvalidArgument, "the header Nsa-Api is no version: " + text, ""});
  if (version <= wire::kApiVersion || call.endpoint == Endpoint::kVersion ||
      call.endpoint == Endpoint::kDaemonStop)
    return std::nullopt;
  const Error mismatch{ErrorCode::kUnsupported,
                       "this nsactl speaks API version " + text + ", the running nsad (" +
                           build_info().version + ") version " + std::to_string(wire::kApiVersion),
                       "nsactl daemon stop && nsactl daemon start (ranks go on meanwhile)"};
  return reply_error(wire::to_view(mismatch), 426);
}

net::Response refused(const SubmitFailure& failure) {
  wire::ErrorView view = wire::to_view(failure.error);
  view.problems = failure.problems;
  return reply_error(view, wire::http_status(failure.error.code));
}

template <class T> Result<T> parse_body(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    return fail(ErrorCode::kInvalidArgument, "the request's body is not a JSON object",
                "send {...} with the members that docs/api.md lists");
  try {
    return json.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kInvalidArgument,
                std::string("the request's body has the wrong shape: ") + e.what());
  }
}

// Rows are texts already: a long list is put together, not parsed and written again.
net::Response reply_rows(const std::vector<std::string>& rows) {
  net::Response response;
  response.body =
      "{\"columns\":" + dump(wire::run_columns()) + ",\"items\":[" + join(rows, ",") + "]}\n";
  return response;
}

// State and problem as the files themselves say. Reads every byte of the checkpoint.
void verify_files(wire::CheckpointView& view) {
  std::error_code error;
  if (view.state == "deleted" || !std::filesystem::exists(view.folder, error)) {
    view.state = "deleted"; // by retention, while others were read
    return;
  }
  const auto manifest = manifest::read(view.folder);
  const Status status =
      manifest ? manifest::verify(view.folder, *manifest) : fail(manifest.error());
  view.state = status ? "verified" : "corrupt";
  view.problem = status ? "" : status.error().what;
}

} // namespace

Routes::Routes(net::EventLoop& loop, Service& service, RoutesOptions options)
    : loop_(loop), service_(service), options_(options) {}

net::HttpObserver Routes::observer() {
  return [this](const net::HttpRecord& record) {
    metrics::RouteSample& sample = requests_[record.route];
    ++sample.requests[record.status];
    sample.seconds.observe(record.seconds);
  };
}

std::string Routes::user_name(uint32_t uid) {
  const auto known = users_.find(uid);
  if (known != users_.end()) return known->second;
  const passwd* entry = ::getpwuid(uid);
  return users_[uid] = entry ? entry->pw_name : std::to_string(uid);
}

net::Response Routes::handle(const net::Request& request) {
  const auto call = parse_call(request.method, {request.path, request.query});
  if (!call) {
    net::Response response = reply_error(wire::to_view(call.error().error), call.error().status);
    if (!call.error().allowed_methods.empty())
      response.header.emplace_back("Allow", call.error().allowed_methods);
    response.route = "invalid";
    return response;
  }
  net::Response response;
  const bool admitted =
      request.peer.is_local_user &&
      (options_.socket_decides || request.peer.uid == 0 || request.peer.uid == options_.owner_uid);
  if (!admitted) {
    response = reply_error({ErrorCode::kPermission,
                            "this nsad serves user " + user_name(options_.owner_uid) + " only",
                            "run your own: nsactl starts one on demand"});
  } else if (auto mismatch = check_version(*call, request)) {
    response = std::move(*mismatch);
  } else {
    response =
        dispatch(*call, request, {request.peer.uid, request.peer.pid, user_name(request.peer.uid)});
  }
  response.route = std::string(call->route);
  return response;
}

net::Response Routes::dispatch(const Call& call, const net::Request& request,
                               const Caller& caller) {
  RunId run;
  if (!call.run.empty()) {
    auto found = service_.find_run(call.run);
    if (!found) return reply_error(found.error());
    run = std::move(*found);
  }
  switch (call.endpoint) {
  case Endpoint::kVersion: {
    const BuildInfo& build = build_info();
    return reply({{"api", wire::kApiVersion},
                  {"version", build.version},
                  {"commit", build.commit},
                  {"compiler", build.compiler}});
  }
  case Endpoint::kDaemon:
    return reply(service_.daemon_status());
  case Endpoint::kDaemonStop:
    // After the answer is out.
    loop_.post([this, caller] { service_.shut_down(caller); });
    return reply({{"stopping", true}});
  case Endpoint::kSubmit:
    return submit(request, caller);
  case Endpoint::kRuns:
    return call.rows ? reply_rows(service_.list_rows(call.all))
                     : reply_items(service_.list_runs(call.all));
  case Endpoint::kRun: {
    const auto detail = service_.run_detail(run);
    return detail ? reply(*detail) : reply_error(detail.error());
  }
  case Endpoint::kRemove: {
    const Status removed = service_.remove(run, caller);
    return removed ? reply({{"id", run}, {"removed", true}}) : reply_error(removed.error());
  }
  case Endpoint::kStop:
    return mutate(run, service_.stop(run, caller));
  case Endpoint::kCancel:
    return mutate(run, service_.cancel(run, caller));
  case Endpoint::kCheckpointNow:
    return mutate(run, service_.checkpoint_now(run, caller));
  case Endpoint::kResume:
    return resume(run, request, caller);
  case Endpoint::kEvents:
    return events(call, run);
  case Endpoint::kLogs:
    return logs(call, run);
  case Endpoint::kFollow:
    return follow(run);
  case Endpoint::kCheckpoints:
    return checkpoints(call, run);
  }
  return reply_error({ErrorCode::kInternal, "an endpoint without a handler", ""});
}

net::Response Routes::submit(const net::Request& request, const Caller& caller) {
  const auto body = parse_body<wire::SubmitRequest>(request.body);
  if (!body) return reply_error(body.error());
  const auto accepted = service_.submit(*body, caller);
  return accepted ? reply(*accepted) : refused(accepted.error());
}

net::Response Routes::resume(const RunId& run, const net::Request& request, const Caller& caller) {
  wire::ResumeRequest body;
  if (!request.body.empty()) {
    auto parsed = parse_body<wire::ResumeRequest>(request.body);
    if (!parsed) return reply_error(parsed.error());
    body = std::move(*parsed);
  }
  const auto accepted = service_.resume(run, body.overrides, caller);
  return accepted ? reply(*accepted) : refused(accepted.error());
}

net::Response Routes::mutate(const RunId& run, Status done) {
  if (!done) return reply_error(done.error());
  const auto detail = service_.run_detail(run);
  return detail ? reply(detail->summary) : reply_error(detail.error());
}

net::Response Routes::checkpoints(const Call& call, const RunId& run) {
  // Never verified inside the service: a checkpoint is gigabytes, and this is the daemon's thread.
  auto listed = service_.checkpoints(run, false);
  if (!listed) return reply_error(listed.error());
  if (!call.verify) return reply_items(*listed);
  net::Response response;
  response.stream = [this, run, views = std::move(*listed)](std::shared_ptr<net::Stream> stream) {
    auto work = [loop = &loop_, service = &service_, run, stream, views]() mutable {
      for (wire::CheckpointView& view : views)
        verify_files(view);
      // The stream belongs to the loop's thread, its last reference too.
      loop->post([service, run, stream = std::move(stream), views = std::move(views)] {
        const Status noted = service->note_verified(run, views);
        stream->write(noted ? reply_items(views).body : reply_error(noted.error()).body);
        stream->end();
      });
    };
    if (background_.submit(std::move(work))) return;
    stream->end();
  };
  return response;
}

net::Handler metrics_handler(std::function<metrics::Snapshot()> snapshot) {
  return [snapshot = std::move(snapshot)](const net::Request& request) {
    net::Response response;
    response.route = "/metrics";
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (request.path != "/metrics") {
      response.status = 404;
      response.route = "invalid";
      response.body = "only /metrics is here\n";
    } else if (request.method != "GET") {
      response.status = 405;
      response.header.emplace_back("Allow", "GET");
    } else {
      response.body = metrics::render(snapshot());
    }
    return response;
  };
}

} // namespace nsa::api
