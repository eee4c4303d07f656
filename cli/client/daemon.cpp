#include "cli/client/daemon.h"

#include "cli/client/start.h"
#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/net/http.h"
#include "common/net/paths.h"
#include "common/wire/error_view.h"

#include <thread>

namespace nsa::client {

namespace {

constexpr const char* kAnswer = "nsad's answer";
// Allows the events of ten thousand runs.
constexpr JsonLimits kAnswerLimits{.bytes = size_t{256} << 20};

// Returns an empty text if there is no such member.
std::string text_member(const nlohmann::json& json, const char* name) {
  if (!json.is_object()) return {};
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const std::vector<std::pair<std::string, std::string>>& version_header() {
  static const std::vector<std::pair<std::string, std::string>> header = {
      {"Nsa-Api", std::to_string(wire::kApiVersion)}};
  return header;
}

// Makes every text of an answer safe for a terminal, because ranks, files and other users wrote it.
void make_printable(nlohmann::json& json) {
  if (json.is_string()) {
    auto& text = json.get_ref<std::string&>();
    text = printable(text);
  }
  if (json.is_structured())
    for (nlohmann::json& inner : json)
      make_printable(inner);
}

Refusal refusal_of(const net::ClientResponse& response) {
  const auto json = parse_json(response.body, kAnswer, kAnswerLimits);
  if (json && json->is_object() && json->contains("what")) {
    if (auto view = read_as<wire::ErrorView>(*json)) {
      Refusal refusal{wire::to_error(*view), view->problems};
      for (const wire::CandidateView& run : view->candidates)
        refusal.error.what += "\n  " + run.id + "  " + run.name + "  " + run.state.text() + "  " +
                              run.user + "  submitted " + format_rfc3339({run.submitted_at});
      // A daemon of another version cannot be used, so it counts as unavailable.
      if (response.status == 426) refusal.error.code = ErrorCode::kUnavailable;
      return refusal;
    }
  }
  return {{ErrorCode::kInternal,
           "nsad answered with status " + std::to_string(response.status) + ": " + response.body,
           ""},
          {}};
}

void pass_on_notice(const DaemonAddress& address,
                    const std::map<std::string, std::string>& header) {
  const auto notice = header.find("nsa-notice");
  if (address.notice && notice != header.end()) address.notice(notice->second);
}

} // namespace

std::string run_target(std::string_view run, std::string_view rest) {
  return "/v1/runs/" + net::encode_component(run) + std::string(rest);
}

Result<Daemon> Daemon::connect(const DaemonAddress& address) {
  NSA_TRY_ASSIGN(const net::NodePaths paths, net::user_paths());
  const std::vector<std::string> candidates =
      address.socket.empty() ? paths.socket_candidates : std::vector<std::string>{address.socket};
  for (const std::string& candidate : candidates) {
    const auto client = net::HttpClient::connect_unix(candidate);
    if (client) return Daemon(address, candidate, false);
    if (client.error().code != ErrorCode::kUnavailable) return fail(client.error());
  }
  if (!address.socket.empty() && address.socket == address.system_socket)
    return fail(ErrorCode::kUnavailable, "the system's nsad does not listen on " + address.socket,
                "start it: systemctl start nsad; or use your own: leave out --system");
  const std::string looked =
      candidates.size() == 1 ? "" : " (looked at " + std::to_string(candidates.size()) + " places)";
  // The user set up this socket. An nsad started on demand would listen on another one.
  if (!address.socket.empty() || paths.named)
    return fail(ErrorCode::kUnavailable, "no nsad listens on " + candidates.front() + looked,
                "start nsad there, or leave out --socket and NSA_SOCKET");
  if (!address.may_start)
    return fail(
        ErrorCode::kUnavailable,
        "your own nsad is not running: nobody listens on " + candidates.front() + looked,
        std::string("nsactl daemon start") +
            (!address.system_socket.empty() && net::HttpClient::connect_unix(address.system_socket)
                 ? "; to use the system's nsad, add --system"
                 : ""));
  NSA_TRY(start_daemon(address.program_dir, paths, address.notice));
  return Daemon(address, paths.socket, true);
}

// Finds the nsad that follows one that is ending. Shims, if there are any, start the next nsad, and
// the old one may still hold its lock. So this starts a new nsad only if none has appeared for a
// while.
Status Daemon::find_successor() {
  constexpr Duration kPatience = std::chrono::seconds(3), kPause = std::chrono::milliseconds(50);
  DaemonAddress quiet = address_;
  quiet.may_start = false;
  const MonotonicTime give_up = MonotonicTime::now() + kPatience;
  Result<Daemon> next = connect(quiet);
  while (!next && MonotonicTime::now() < give_up) {
    std::this_thread::sleep_for(kPause);
    next = connect(quiet);
  }
  if (!next) next = connect(address_);
  if (!next) return fail(next.error());
  socket_ = next->socket_;
  started_ = started_ || next->started_;
  return {};
}

tl::expected<std::string, Refusal> Daemon::exchange(const std::string& method,
                                                    const std::string& target,
                                                    const nlohmann::json* body, Duration timeout) {
  net::ClientRequest request{method, target, version_header(), ""};
  if (body && !body->is_null())
    request.body = body->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Status 503 means "not yet", for example while a run is ending. The request is repeated for as
  // long as a person would wait.
  constexpr Duration kPatience = std::chrono::seconds(10), kPause = std::chrono::milliseconds(50);
  const MonotonicTime give_up = MonotonicTime::now() + kPatience;
  Result<net::ClientResponse> response;
  bool lost_before = false;
  while (true) {
    auto client = net::HttpClient::connect_unix(socket_);
    response = client ? client->send(request, timeout) : fail(client.error());
    if (!response) {
      // An nsad that is ending still accepts connections. A request that was not sent, or that only
      // reads, goes to its successor, once.
      const bool lost = response.error().code == ErrorCode::kUnavailable;
      if (!lost || lost_before || (client && method != "GET"))
        return tl::unexpected(Refusal{response.error(), {}});
      lost_before = true;
      if (auto found = find_successor(); !found) return tl::unexpected(Refusal{found.error(), {}});
      continue;
    }
    if (response->status != 503 || MonotonicTime::now() >= give_up) break;
    std::this_thread::sleep_for(kPause);
  }
  if (response->status != 200) return tl::unexpected(refusal_of(*response));
  pass_on_notice(address_, response->header);
  return std::move(response->body);
}

tl::expected<nlohmann::json, Refusal> Daemon::call(const std::string& method,
                                                   const std::string& target,
                                                   const nlohmann::json* body, Duration timeout) {
  const auto text = exchange(method, target, body, timeout);
  if (!text) return tl::unexpected(text.error());
  auto json = parse_json(*text, kAnswer, kAnswerLimits);
  if (!json) return tl::unexpected(Refusal{std::move(json).error(), {}});
  if (address_.escape) make_printable(*json);
  return std::move(*json);
}

Result<nlohmann::json> Daemon::get(const std::string& target, Duration timeout) {
  auto answer = call("GET", target, nullptr, timeout);
  if (!answer) return fail(std::move(answer).error().error);
  return std::move(*answer);
}

Result<std::string> Daemon::get_text(const std::string& target, Duration timeout) {
  auto answer = exchange("GET", target, nullptr, timeout);
  if (!answer) return fail(std::move(answer).error().error);
  return std::move(*answer);
}

Result<nlohmann::json> Daemon::post(const std::string& target, const nlohmann::json& body) {
  auto answer = call("POST", target, &body, kTimeout);
  if (!answer) return fail(std::move(answer).error().error);
  return std::move(*answer);
}

Result<nlohmann::json> Daemon::remove(const std::string& target) {
  auto answer = call("DELETE", target, nullptr, kTimeout);
  if (!answer) return fail(std::move(answer).error().error);
  return std::move(*answer);
}

tl::expected<nlohmann::json, Refusal> Daemon::submit(const std::string& target,
                                                     const nlohmann::json& body) {
  return call("POST", target, &body, kTimeout);
}

Result<net::StreamEnd> Daemon::follow(const std::string& target, const FollowOptions& options) {
  NSA_TRY_ASSIGN(net::HttpClient client, net::HttpClient::connect_unix(socket_));
  Status failure;
  net::LineReader reader;
  reader.head = [this](const auto& header) { pass_on_notice(address_, header); };
  reader.tick = options.tick;
  reader.interrupt_fd = options.interrupt_fd;
  reader.line = [&](std::string_view text) {
    auto json = parse_json(text, "a line of nsad's answer", kAnswerLimits);
    if (!json) {
      failure = fail(json.error());
      return false;
    }
    if (choice_from<wire::LineType>(text_member(*json, "type")) == wire::LineType::kCutOff) {
      failure =
          fail(ErrorCode::kExhausted, "nsad cut this stream off: " + text_member(*json, "what"),
               "follow again; what was missed is in `nsactl events` and `nsactl logs`");
      return false;
    }
    if (address_.escape) make_printable(*json);
    return options.line(*json);
  };
  NSA_TRY_ASSIGN(const net::StreamedResponse answer,
                 client.send_streaming({"GET", target, version_header(), ""}, kTimeout, reader));
  if (!failure) return fail(failure.error());
  if (answer.end == net::StreamEnd::kEnded && answer.response.status != 200)
    return fail(refusal_of(answer.response).error);
  return answer.end;
}

} // namespace nsa::client
