#include "cli/ui/request_filter.h"

#include "common/base/json.h"
#include "common/net/guards.h"
#include "common/wire/api_types.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace nsa::ui {

namespace {

struct Route {
  std::string_view path; // "{run}" stands for a run
  std::vector<std::string_view> parameters;
};

// `follow` and `verify` are missing on purpose: one holds a connection, the other reads every
// checkpoint.
const std::vector<Route>& reads() {
  static const std::vector<Route> routes = {
      {"/v1/version", {}},
      {"/v1/daemon", {}},
      {"/v1/runs", {"all", "rows"}},
      {"/v1/events", {"after", "limit", "tail"}},
      {"/v1/runs/{run}", {}},
      {"/v1/runs/{run}/events", {"after", "limit", "tail"}},
      {"/v1/runs/{run}/logs", {"rank", "attempt", "tail", "positions", "from"}},
      {"/v1/runs/{run}/metrics",
       {"kind", "metrics", "points", "first_step", "last_step", "coarse"}},
      {"/v1/runs/{run}/checkpoints", {}},
  };
  return routes;
}
const std::vector<Route>& actions() {
  static const std::vector<Route> routes = {
      {"/v1/runs/{run}/stop", {}},
      {"/v1/runs/{run}/cancel", {}},
      {"/v1/runs/{run}/resume", {}},
      {"/v1/runs/{run}/checkpoint", {}},
  };
  return routes;
}

// Accepts ids, names and @last. Rejects slashes and the names "." and "..".
bool names_run(std::string_view text) {
  const auto fits = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '@';
  };
  return !text.empty() && text.size() <= 200 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), fits);
}

// Returns nsad's target if `path` matches this route.
std::optional<std::string> target_of(const Route& route, std::string_view path) {
  constexpr std::string_view kRun = "{run}";
  const size_t at = route.path.find(kRun);
  if (at == std::string_view::npos)
    return path == route.path ? std::optional(std::string(path)) : std::nullopt;
  const std::string_view before = route.path.substr(0, at);
  const std::string_view behind = route.path.substr(at + kRun.size());
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) ||
      !path.ends_with(behind))
    return std::nullopt;
  const auto run = net::decode_component(
      path.substr(before.size(), path.size() - before.size() - behind.size()));
  if (!run || !names_run(*run)) return std::nullopt;
  return std::string(before) + net::encode_component(*run) + std::string(behind);
}

std::optional<std::pair<const Route*, std::string>> find(const std::vector<Route>& routes,
                                                         std::string_view path) {
  for (const Route& route : routes)
    if (auto target = target_of(route, path)) return std::pair(&route, std::move(*target));
  return std::nullopt;
}

Errand forward(const Route& route, std::string target, const net::Request& request) {
  char separator = '?';
  for (const auto& [name, value] : request.query) {
    if (std::find(route.parameters.begin(), route.parameters.end(), name) == route.parameters.end())
      return refuse(400, "the page's server does not pass on the parameter '" + name + "'");
    target += separator + net::encode_component(name);
    if (!value.empty()) target += "=" + net::encode_component(value);
    separator = '&';
  }
  Forward made;
  made.request.method = request.method;
  made.request.target = std::move(target);
  made.request.header = {{"Nsa-Api", std::to_string(wire::kApiVersion)}};
  return made;
}

Errand evidence(const net::Request& request) {
  const auto run = request.query.find("run"), hang = request.query.find("hang");
  HangEvidence made;
  if (run == request.query.end() || hang == request.query.end() || !names_run(run->second))
    return refuse(400, "the evidence of a hang is asked for by run and hang");
  made.run = run->second;
  const std::string& number = hang->second;
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), made.hang);
  if (error != std::errc{} || end != number.data() + number.size())
    return refuse(400, "hang is no number: " + number);
  return made;
}

std::string header_of(const net::Request& request, const char* name) {
  const auto found = request.header.find(name);
  return found == request.header.end() ? std::string() : found->second;
}

} // namespace

net::Response refuse(int status, const std::string& what, const std::string& next) {
  net::Response response;
  response.status = status;
  const nlohmann::json body = {{"what", what}, {"next", next}};
  response.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

bool RequestFilter::has_cookie(const net::Request& request) const {
  const std::string cookies = header_of(request, "cookie");
  const std::string name = "nsa-ui-" + std::to_string(rules_.port) + "=";
  for (size_t from = 0; from < cookies.size();) {
    size_t end = cookies.find(';', from);
    if (end == std::string::npos) end = cookies.size();
    std::string_view cookie = std::string_view(cookies).substr(from, end - from);
    while (cookie.starts_with(' '))
      cookie.remove_prefix(1);
    if (cookie.starts_with(name) && net::is_same_secret(cookie.substr(name.size()), rules_.token))
      return true;
    from = end + 1;
  }
  return false;
}

// Redirects without the token, so that it disappears from the address bar, the history and copied
// URLs.
net::Response RequestFilter::welcome(const std::string& path) const {
  net::Response response;
  response.status = 303;
  response.content_type = "text/plain; charset=utf-8";
  response.header = {{"Location", path},
                     {"Set-Cookie", "nsa-ui-" + std::to_string(rules_.port) + "=" + rules_.token +
                                        "; Path=/; HttpOnly; SameSite=Strict"}};
  return response;
}

Errand RequestFilter::judge(const net::Request& request) const {
  const std::string host = header_of(request, "host"), origin = header_of(request, "origin");
  if (!net::names_loopback(host))
    return refuse(421, "this page answers on 127.0.0.1, localhost and [::1] only",
                  "over ssh forward its port: nsactl ui --help");
  const bool is_read = request.method == "GET";
  // Browsers send the origin with every POST. A POST without an origin does not come from a page.
  if (origin != "http://" + host && !(is_read && origin.empty()))
    return refuse(403, "the request comes from another site");
  if (const auto token = request.query.find("token"); token != request.query.end() && is_read) {
    if (request.path == "/" && net::is_same_secret(token->second, rules_.token))
      return welcome(request.path);
    return refuse(401, "the token in this URL is wrong", "open the URL that nsactl ui printed");
  }
  if (!has_cookie(request))
    return refuse(401, "this page needs the token of its URL",
                  "open the URL that nsactl ui printed");
  if (const auto read = find(reads(), request.path)) {
    if (is_read) return forward(*read->first, read->second, request);
    return refuse(405, request.method + " is not passed on to nsad for " + request.path);
  }
  if (const auto action = find(actions(), request.path)) {
    if (request.method != "POST")
      return refuse(405, request.method + " is not passed on to nsad for " + request.path);
    if (!rules_.allow_actions)
      return refuse(403, "this page only reads", "start it with: nsactl ui --allow-actions");
    return forward(*action->first, action->second, request);
  }
  if (!is_read) return refuse(405, request.method + " is not for " + request.path);
  if (request.path == "/ui/settings") return Settings{};
  if (request.path == "/ui/evidence") return evidence(request);
  return PageFile{request.path == "/" ? "index.html" : request.path.substr(1)};
}

} // namespace nsa::ui
