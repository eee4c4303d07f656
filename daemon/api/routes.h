// The HTTP API: requests -> Service -> responses (docs/api.md). It checks the caller and the API
// version, turns errors into ErrorView, and streams events, logs and follow lines.
//
// All functions run on the event loop's thread, and handle() returns at once. Its own threads parse
// bodies and read logs. It must outlive the servers that call it.
#pragma once

#include "common/net/event_loop.h"
#include "common/net/http_server.h"
#include "common/net/offload.h"
#include "daemon/api/metric_points.h"
#include "daemon/api/nodes.h"
#include "daemon/api/route.h"
#include "daemon/api/service.h"
#include "daemon/metrics/snapshot.h"

#include <filesystem>
#include <map>
#include <string>

namespace nsa::api {

class Routes {
public:
  // `indexes` is the folder for the indexes of curves that nsad makes. If it is empty, nsad makes
  // none.
  Routes(net::EventLoop& loop, Queries& queries, Requests& requests, Nodes& nodes,
         AccessRules rules, const std::filesystem::path& indexes = {});

  net::Response handle(const net::Request& request);
  net::Handler handler() {
    return [this](const net::Request& request) { return handle(request); };
  }
  // Returns an observer for the server that counts requests by route.
  net::HttpObserver observer();
  const std::map<std::string, metrics::RouteSample>& counts() const { return counts_; }

private:
  net::Response dispatch(const Call& call, const net::Request& request, const Caller& caller);
  tl::expected<RunId, net::Response> find(const Call& call, const Caller& caller,
                                          std::string& notice);
  net::Response refuse(const Call& call, const Caller& caller, const std::string& run,
                       int64_t owner, const Error& why);
  net::Response serve(const Call& call, const RunId& run, const net::Request& request,
                      const Caller& caller);
  net::Response audit(const Call& call, const Caller& caller);
  net::Response nodes(const Call& call);
  net::Response node(const std::string& name);
  net::Response node_token(const Caller& caller);
  net::Response change_node(const Call& call, const Caller& caller);
  net::Response start_work(const Call& call, const net::Request& request, const Caller& caller);
  net::Response how_is_work(const Call& call);
  template <class T, class Use>
  net::Response work_on_node(const net::Request& request, const Caller& caller, const Use& use);
  net::Response submit(const net::Request& request, const Caller& caller);
  net::Response resume(const RunId& run, const net::Request& request, const Caller& caller);
  // Parses the body on another thread. Then it calls `use` with the value, or answers that the body
  // is no T.
  template <class T, class Use>
  net::Response with_body(const net::Request& request, const Caller& caller, const Use& use);
  net::Response set(const RunId& run, const net::Request& request, const Caller& caller);
  net::Response mutate(const RunId& run, Status done);
  // Answers with one JSON text: `start`, the items of all pages, and `end`.
  net::Response paged_list(const std::string& start, std::function<Result<ListPage>()> read,
                           const std::string& end);
  net::Response runs(const Call& call, const Caller& caller);
  net::Response events(const Call& call, const RunId& run);
  net::Response follow(const RunId& run);
  net::Response logs(const Call& call, const RunId& run);
  net::Response metric_records(const Call& call, const RunId& run);
  net::Response checkpoints(const Call& call, const RunId& run);
  std::string user_name(uint32_t uid);

  net::EventLoop& loop_;
  Queries& queries_;
  Requests& requests_;
  Nodes& nodes_;
  AccessRules rules_;
  std::map<std::string, metrics::RouteSample> counts_;
  std::map<uint32_t, std::string> users_;
  std::shared_ptr<MetricCache> metric_cache_;
  net::Offload readers_;
};

} // namespace nsa::api
