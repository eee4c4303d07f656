#include "daemon/api/routes.h"

#include "common/base/build_info.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/wire/run_row.h"
#include "daemon/api/reply.h"

#include <algorithm>
#include <charconv>
#include <pwd.h>

namespace nsa::api {

namespace {

// During an upgrade, nsactl and nsad may have different versions. Then the client is told what to
// do, and may still ask for the version and stop this daemon.
std::optional<net::Response> check_version(const Call& call, const net::Request& request) {
  const auto header = request.header.find("nsa-api");
  if (header == request.header.end()) return std::nullopt; // a client such as curl
  int version = 0;
  const std::string& text = header->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc{} || end != text.data() + text.size() || version < 1)
    return reply_error(
        {ErrorCode::kInvalidArgument, "the header Nsa-Api is no version: " + text, ""});
  if (version == wire::kApiVersion || call.endpoint == Endpoint::kVersion ||
      call.endpoint == Endpoint::kDaemonStop)
    return std::nullopt;
  const Error mismatch{
      ErrorCode::kUnsupported,
      "this nsactl speaks API version " + text + ", the running nsad (" + build_info().version +
          ") version " + std::to_string(wire::kApiVersion),
      version < wire::kApiVersion
          ? "use the nsactl that was installed with this nsad"
          : "nsactl daemon stop && nsactl daemon start (ranks continue meanwhile)"};
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

using Answer = std::function<void(net::Response)>;

// Returns a response that a callback of the daemon completes later.
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

wire::RunSummary says_little(const wire::RunSummary& run) {
  wire::RunSummary little;
  little.id = run.id;
  little.name = run.name;
  little.user = run.user;
  little.state = run.state;
  little.attempt = run.attempt;
  little.ranks = run.ranks;
  little.step = run.step;
  little.steps = run.steps;
  little.submitted_at = run.submitted_at;
  little.started_at = run.started_at;
  little.ended_at = run.ended_at;
  return little;
}

Routes::Routes(net::EventLoop& loop, Queries& queries, Requests& requests, Nodes& nodes,
               AccessRules rules, const std::filesystem::path& indexes)
    : loop_(loop), queries_(queries), requests_(requests), nodes_(nodes), rules_(rules),
      metric_cache_(std::make_shared<MetricCache>(
          kIndexedFrom, indexes.empty() ? nullptr : std::make_shared<CurveIndexes>(indexes))),
      readers_(loop) {}

net::HttpObserver Routes::observer() {
  return [this](const net::HttpRecord& record) {
    metrics::RouteSample& sample = counts_[record.route];
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
  if (!may_connect(request.peer, rules_)) {
    response = reply_error({ErrorCode::kPermission,
                            "this nsad serves user " + user_name(rules_.daemon_uid) + " only",
                            "run your own: nsactl starts one on demand"});
  } else if (auto mismatch = check_version(*call, request)) {
    response = std::move(*mismatch);
  } else {
    const net::Peer& peer = request.peer;
    response = dispatch(
        *call, request,
        {peer.uid, peer.gid, peer.pid, user_name(peer.uid), is_administrator(peer, rules_)});
  }
  response.route = std::string(call->route);
  return response;
}

// Records the refusal in the audit if the call was to change something.
net::Response Routes::refuse(const Call& call, const Caller& caller, const std::string& run,
                             int64_t owner, const Error& why) {
  if (!call.verb.empty()) requests_.refuse(caller, call.verb, run, owner, why);
  return reply_error(why);
}

// Returns the one run that the call names, if the caller may do this with it. If a name fits
// several runs, reading uses the newest and says so. A change is refused then.
tl::expected<RunId, net::Response> Routes::find(const Call& call, const Caller& caller,
                                                std::string& notice) {
  const auto match = queries_.find_run(call.run, caller);
  if (!match) return tl::unexpected(refuse(call, caller, call.run, -1, match.error()));
  const RunMatch::Owned& newest = match->runs.front();
  const size_t count = match->runs.size();
  if (count > 1 && (!call.verb.empty() || call.unique || match->by_prefix)) {
    const Error why{ErrorCode::kConflict,
                    "'" + call.run + "' " +
                        (match->by_prefix ? "is the beginning of " : "is the name of ") +
                        std::to_string(count) + " runs",
                    "say which by its id"};
    net::Response refusal = refuse(call, caller, call.run, -1, why);
    wire::ErrorView view = wire::to_view(why);
    view.candidates = queries_.candidates(*match);
    refusal.body = dump(nlohmann::json(view)) + "\n";
    return tl::unexpected(std::move(refusal));
  }
  if (count > 1)
    notice = std::to_string(count) + " runs have this name; this is the newest, " + newest.id;
  if (call.need == Need::kOwner && !owns(caller, newest.uid)) {
    const std::string whose =
        newest.uid < 0 ? "somebody else" : user_name(static_cast<uint32_t>(newest.uid));
    return tl::unexpected(
        refuse(call, caller, newest.id, newest.uid,
               {ErrorCode::kPermission, "run " + newest.id + " belongs to " + whose,
                "ask them, or an administrator of this nsad"}));
  }
  return newest.id;
}

net::Response Routes::dispatch(const Call& call, const net::Request& request,
                               const Caller& caller) {
  if (call.need == Need::kAdministrator && !caller.administrator)
    return refuse(call, caller, call.node + call.gpu, -1,
                  {ErrorCode::kPermission,
                   call.verb.empty() ? "only administrators may see what is about all runs"
                   : call.endpoint == Endpoint::kDaemonStop
                       ? "only administrators may stop this nsad"
                   : call.endpoint == Endpoint::kGpuRelease
                       ? "only administrators may release a GPU from quarantine"
                       : "only administrators may change the nodes of this nsad",
                   call.verb.empty() ? "name one of your runs: nsactl ls" : "ask one of them"});
  if (call.run.empty()) return serve(call, "", request, caller);
  std::string notice;
  auto run = find(call, caller, notice);
  if (!run) return std::move(run.error());
  net::Response response = serve(call, *run, request, caller);
  if (notice.empty()) return response;
  if (!response.later) {
    response.header.emplace_back("Nsa-Notice", notice);
    return response;
  }
  response.later = [later = std::move(response.later), notice](auto answer) {
    later([answer = std::move(answer), notice](net::Response late) {
      late.header.emplace_back("Nsa-Notice", notice);
      answer(std::move(late));
    });
  };
  return response;
}

net::Response Routes::serve(const Call& call, const RunId& run, const net::Request& request,
                            const Caller& caller) {
  switch (call.endpoint) {
  case Endpoint::kVersion: {
    const BuildInfo& build = build_info();
    return reply({{"api", wire::kApiVersion},
                  {"version", build.version},
                  {"commit", build.commit},
                  {"compiler", build.compiler}});
  }
  case Endpoint::kDaemon:
    return reply(queries_.daemon_status());
  case Endpoint::kDaemonStop:
    // Runs after the reply is sent.
    loop_.post([this, caller] { requests_.shut_down(caller); });
    return reply({{"stopping", true}});
  case Endpoint::kSubmit:
    return submit(request, caller);
  case Endpoint::kRuns:
    return runs(call, caller);
  case Endpoint::kRun:
    return answer_later([this, run](const Answer& answer) {
      queries_.run_detail(run, [answer](const auto& detail) { answer(reply_or_error(detail)); });
    });
  case Endpoint::kRemove: {
    const Status removed = requests_.remove(run, caller);
    return removed ? reply({{"id", run}, {"removed", true}}) : reply_error(removed.error());
  }
  case Endpoint::kStop:
    return mutate(run, requests_.stop(run, caller));
  case Endpoint::kCancel:
    return mutate(run, requests_.cancel(run, caller));
  case Endpoint::kCheckpointNow:
    return mutate(run, requests_.checkpoint_now(run, caller));
  case Endpoint::kResume:
    return resume(run, request, caller);
  case Endpoint::kSet:
    return set(run, request, caller);
  case Endpoint::kSpec:
    return answer_later([this, run, attempt = call.attempt](const Answer& answer) {
      queries_.attempt_spec(run, attempt,
                            [answer](const auto& spec) { answer(reply_or_error(spec)); });
    });
  case Endpoint::kEvents:
    return events(call, run);
  case Endpoint::kLogs:
    return logs(call, run);
  case Endpoint::kMetrics:
    return metric_records(call, run);
  case Endpoint::kFollow:
    return follow(run);
  case Endpoint::kCheckpoints:
    return checkpoints(call, run);
  case Endpoint::kAudit:
    return audit(call, caller);
  case Endpoint::kNodes:
    return nodes(call);
  case Endpoint::kNode:
    return node(call.node);
  case Endpoint::kNodeToken:
    return node_token(caller);
  case Endpoint::kDataPush:
  case Endpoint::kNetworkProbe:
    return start_work(call, request, caller);
  case Endpoint::kDataPushed:
  case Endpoint::kNetworkProbed:
    return how_is_work(call);
  case Endpoint::kGpus:
    return reply_items(nodes_.gpus());
  case Endpoint::kGpuRelease: {
    const auto released = nodes_.release_gpu(call.gpu, caller);
    return released ? reply(*released) : reply_error(released.error());
  }
  case Endpoint::kNodeRemove:
  case Endpoint::kNodeDrain:
  case Endpoint::kNodeUndrain:
    return change_node(call, caller);
  }
  return reply_error({ErrorCode::kInternal, "an endpoint without a handler", ""});
}

// Parsing megabytes of JSON takes longer than a tick of the loop may.
template <class T, class Use>
net::Response Routes::with_body(const net::Request& request, const Caller& caller, const Use& use) {
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

net::Response Routes::audit(const Call& call, const Caller& caller) {
  AuditQuery query;
  query.run = call.about;
  if (!call.about.empty())
    if (const auto match = queries_.find_run(call.about, caller))
      query.run = match->runs.front().id;
  query.limit = static_cast<int>(std::clamp<int64_t>(call.tail.value_or(1000), 1, 10'000));
  if (!caller.administrator) query.uid = caller.uid;
  const auto rows = queries_.audit(query);
  return rows ? reply_items(*rows) : reply_error(rows.error());
}

net::Response Routes::submit(const net::Request& request, const Caller& caller) {
  return with_body<wire::SubmitRequest>(
      request, caller, [this, caller](wire::SubmitRequest body, SubmitDone done) {
        requests_.submit(std::move(body), caller, std::move(done));
      });
}

net::Response Routes::resume(const RunId& run, const net::Request& request, const Caller& caller) {
  const auto use = [this, run, caller](wire::ResumeRequest body, SubmitDone done) {
    requests_.resume(run, std::move(body), caller, std::move(done));
  };
  if (!request.body.empty()) return with_body<wire::ResumeRequest>(request, caller, use);
  return answer_later([use](const Answer& answer) { use({}, answer_submit(answer)); });
}

net::Response Routes::set(const RunId& run, const net::Request& request, const Caller& caller) {
  auto body = std::make_shared<const std::string>(request.body);
  return answer_later([this, run, caller, body = std::move(body)](const Answer& answer) {
    readers_.run(
        {caller.user, "a request's body"}, [body] { return parse_body<wire::SetRequest>(*body); },
        [this, run, caller, answer](const Result<wire::SetRequest>& parsed) {
          answer(parsed ? mutate(run, requests_.set(run, *parsed, caller))
                        : reply_error(parsed.error()));
        });
  });
}

net::Response Routes::mutate(const RunId& run, Status done) {
  return done ? reply_or_error(queries_.run_summary(run)) : reply_error(done.error());
}

net::Response Routes::checkpoints(const Call& call, const RunId& run) {
  return answer_later([this, run, verify = call.verify](const Answer& answer) {
    queries_.checkpoints(run, verify,
                         [answer](const Result<std::vector<wire::CheckpointView>>& listed) {
                           answer(listed ? reply_items(*listed) : reply_error(listed.error()));
                         });
  });
}

net::Response Routes::nodes(const Call& call) {
  std::vector<wire::NodeView> listed = nodes_.list();
  if (!call.all)
    std::erase_if(listed, [](const wire::NodeView& view) {
      return view.state == wire::NodeStatus::kRemoved;
    });
  return reply_items(listed);
}

net::Response Routes::node(const std::string& name) {
  for (const wire::NodeView& view : nodes_.list())
    if (view.name == name) return reply(view);
  return reply_error({ErrorCode::kNotFound, "no node is named '" + name + "'", "nsactl node ls"});
}

net::Response Routes::node_token(const Caller& caller) {
  const auto token = nodes_.make_token(caller);
  return token ? reply(*token) : reply_error(token.error());
}

// `use` gets the request's body and returns the answer's content.
template <class T, class Use>
net::Response Routes::work_on_node(const net::Request& request, const Caller& caller,
                                   const Use& use) {
  auto body = std::make_shared<const std::string>(request.body);
  return answer_later([this, body, caller, use](const Answer& answer) {
    readers_.run(
        {caller.user, "a request's body"}, [body] { return parse_body<T>(*body); },
        [answer, use](const Result<T>& parsed) {
          answer(parsed ? reply_or_error(use(*parsed)) : reply_error(parsed.error()));
        });
  });
}

net::Response Routes::start_work(const Call& call, const net::Request& request,
                                 const Caller& caller) {
  if (call.endpoint == Endpoint::kDataPush)
    return work_on_node<wire::DataPushRequest>(
        request, caller, [this, node = call.node, caller](const wire::DataPushRequest& wanted) {
          return nodes_.push_data(node, wanted.path, caller);
        });
  return work_on_node<wire::NetworkProbeRequest>(
      request, caller, [this, node = call.node, caller](const wire::NetworkProbeRequest& wanted) {
        return nodes_.probe_network(node, wanted, caller);
      });
}

net::Response Routes::how_is_work(const Call& call) {
  if (call.endpoint == Endpoint::kDataPushed) return reply_or_error(nodes_.pushed_data(call.node));
  return reply_or_error(nodes_.probed_network(call.node));
}

net::Response Routes::change_node(const Call& call, const Caller& caller) {
  const Status done =
      call.endpoint == Endpoint::kNodeRemove
          ? nodes_.remove(call.node, caller)
          : nodes_.set_drained(call.node, call.endpoint == Endpoint::kNodeDrain, caller);
  return done ? node(call.node) : reply_error(done.error());
}

} // namespace nsa::api
