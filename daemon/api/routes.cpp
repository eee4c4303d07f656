#include "daemon/api/routes.h"

#include "common/base/build_info.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/wire/run_row.h"
#include "daemon/api/reply.h"
#include "daemon/metrics/render.h"

#include <charconv>
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
  const char* const next = "send {...} with the members that docs/api.md lists";
  const auto json = parse_json(body, "the request's body", {.bytes = net::HttpLimits{}.body_bytes});
  if (!json) return fail(ErrorCode::kInvalidArgument, json.error().what, next);
  if (!json->is_object())
    return fail(ErrorCode::kInvalidArgument, "the request's body is not a JSON object", next);
  try {
    return json->get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kInvalidArgument,
                "the request's body has the wrong shape: " + reason_of(e), next);
  }
}

// Rows are texts already: a long list is put together, not parsed and written again.
net::Response reply_rows(const std::vector<std::string>& rows, int64_t total) {
  net::Response response;
  response.body = "{\"columns\":" + dump(wire::run_columns()) +
                  ",\"total\":" + std::to_string(total) + ",\"items\":[" + join(rows, ",") + "]}\n";
  return response;
}

using Answer = std::function<void(net::Response)>;

// An answer that a callback of the service gives.
net::Response answer_later(std::function<void(Answer)> start) {
  net::Response response;
  response.later = std::move(start);
  return response;
}

template <class T> net::Response reply_or_error(const Result<T>& result) {
  return result ? reply(*result) : reply_error(result.error());
}

SubmitDone answer_submit(Answer answer) {
  return [answer = std::move(answer)](const tl::expected<wire::SubmitReply, SubmitFailure>& made) {
    answer(made ? reply(*made) : refused(made.error()));
  };
}

} // namespace

Routes::Routes(net::EventLoop& loop, Service& service, RoutesOptions options)
    : loop_(loop), service_(service), options_(options), readers_(loop) {}

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
    return call.rows
               ? reply_rows(service_.list_rows(call.all), service_.run_count())
               : reply({{"total", service_.run_count()}, {"items", service_.list_runs(call.all)}});
  case Endpoint::kRun:
    return answer_later([this, run](const Answer& answer) {
      service_.run_detail(run, [answer](const auto& detail) { answer(reply_or_error(detail)); });
    });
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

// Megabytes of JSON take longer than a tick of the loop may.
template <class T, class Use>
net::Response Routes::with_body(const net::Request& request, const Caller& caller, Use use) {
  auto body = std::make_shared<const std::string>(request.body);
  return answer_later([this, body = std::move(body), caller, use](const Answer& answer) {
    readers_.run(
        {caller.user, "a request's body"}, [body] { return parse_body<T>(*body); },
        [answer, use](Result<T> parsed) {
          if (!parsed) return answer(reply_error(parsed.error()));
          use(std::move(*parsed), answer_submit(answer));
        });
  });
}

net::Response Routes::submit(const net::Request& request, const Caller& caller) {
  return with_body<wire::SubmitRequest>(request, caller,
                                        [this, caller](wire::SubmitRequest body, SubmitDone done) {
                                          service_.submit(std::move(body), caller, std::move(done));
                                        });
}

net::Response Routes::resume(const RunId& run, const net::Request& request, const Caller& caller) {
  const auto use = [this, run, caller](wire::ResumeRequest body, SubmitDone done) {
    service_.resume(run, std::move(body), caller, std::move(done));
  };
  if (!request.body.empty()) return with_body<wire::ResumeRequest>(request, caller, use);
  return answer_later([use](const Answer& answer) { use({}, answer_submit(answer)); });
}

net::Response Routes::mutate(const RunId& run, Status done) {
  return done ? reply_or_error(service_.run_summary(run)) : reply_error(done.error());
}

net::Response Routes::checkpoints(const Call& call, const RunId& run) {
  return answer_later([this, run, verify = call.verify](const Answer& answer) {
    service_.checkpoints(run, verify,
                         [answer](const Result<std::vector<wire::CheckpointView>>& listed) {
                           answer(listed ? reply_items(*listed) : reply_error(listed.error()));
                         });
  });
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
