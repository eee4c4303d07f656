#include "cli/ui/page_server.h"

#include "cli/ui/request_filter.h"
#include "common/base/embedded_file.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/net/http_client.h"
#include "common/net/http_server.h"
#include "common/net/offload.h"
#include "common/progress/phase.h"
#include "common/wire/words.h"

#include <algorithm>
#include <cerrno>
#include <sys/random.h>

namespace nsa::ui {

const std::vector<EmbeddedFile>& page_files(); // written by cmake/EmbedFiles.cmake

namespace {

constexpr Duration kTimeout = std::chrono::seconds(30); // of an answer of nsad
constexpr size_t kMaxEvidence = size_t{64} << 20;
constexpr JsonLimits kAnswerLimits{.bytes = size_t{64} << 20};

// Nothing but this page's own files, and no other site around it.
const char* const kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

net::Response secured(net::Response response) {
  response.header.emplace_back("Content-Security-Policy", kPolicy);
  response.header.emplace_back("X-Content-Type-Options", "nosniff");
  response.header.emplace_back("Referrer-Policy", "no-referrer");
  response.header.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  response.header.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  response.header.emplace_back("Cache-Control", "no-store");
  return response;
}

net::Response serve_file(const PageFile& file) {
  const auto& files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const EmbeddedFile& known) {
    return known.name == file.name;
  });
  if (found == files.end()) return refuse(404, "this page has no file " + file.name);
  net::Response response;
  response.content_type = std::string(type_of(found->name));
  response.body = std::string(found->text);
  return response;
}

// The words of closed lists, so that the page has no list of its own.
nlohmann::json settings(bool actions) {
  nlohmann::json phases = nlohmann::json::array(), states = nlohmann::json::array();
  for (const progress::PhaseInfo& info : progress::kPhases)
    phases.push_back(info.name);
  for (const std::string_view name : choice_names(wire::RunState{}))
    states.push_back(name);
  return {{"actions", actions}, {"phases", phases}, {"run_states", states}};
}

net::Response unreachable(const Error& error) {
  return refuse(error.code == ErrorCode::kExhausted ? 504 : 502, error.what,
                error.next.empty() ? "nsactl daemon status" : error.next);
}

Result<net::ClientResponse> ask_nsad(const std::string& socket, const net::ClientRequest& request) {
  NSA_TRY_ASSIGN(net::HttpClient client, net::HttpClient::connect_unix(socket));
  return client.send(request, kTimeout);
}

net::Response forward(const std::string& socket, const net::ClientRequest& request) {
  auto answer = ask_nsad(socket, request);
  if (!answer) return unreachable(answer.error());
  net::Response response;
  response.status = answer->status;
  response.content_type = answer->header["content-type"];
  response.body = std::move(answer->body);
  if (const auto notice = answer->header.find("nsa-notice"); notice != answer->header.end())
    response.header.emplace_back("Nsa-Notice", notice->second);
  return response;
}

// A file of the evidence, as JSON within the answer; "null" where it is missing or damaged.
std::string part_of(const std::string& path) {
  auto text = read_file(path, kMaxEvidence);
  return text && check_json(*text, path, kAnswerLimits) ? *text : "null";
}

// {"evidence", "verdict", "collectives": {rank: flight record}}
net::Response saved_files(const std::string& folder) {
  const std::string path = folder + "/evidence.json";
  const auto text = read_file(path, kMaxEvidence);
  if (!text)
    return refuse(text.error().code == ErrorCode::kPermission ? 403 : 404, text.error().what,
                  text.error().next);
  const auto evidence = parse_json(*text, path, kAnswerLimits);
  if (!evidence) return refuse(502, evidence.error().what);
  std::string collectives;
  if (const auto ranks = evidence->find("ranks"); ranks != evidence->end() && ranks->is_array())
    for (const nlohmann::json& rank : *ranks) {
      const auto number = rank.is_object() ? rank.find("rank") : rank.end();
      if (number == rank.end() || !number->is_number_unsigned()) continue;
      const std::string name = std::to_string(number->get<uint64_t>());
      collectives += (collectives.empty() ? "\"" : ",\"") + name +
                     "\":" + part_of(folder + "/collectives-" + name + ".json");
    }
  net::Response response;
  response.body = "{\"evidence\":" + *text + ",\"verdict\":" + part_of(folder + "/verdict.json") +
                  ",\"collectives\":{" + collectives + "}}\n";
  return response;
}

// Folder and files are those that nsad names: nothing of the path comes from the page.
net::Response evidence(const std::string& socket, const HangEvidence& asked) {
  net::ClientRequest request;
  request.target = "/v1/runs/" + net::encode_component(asked.run);
  const auto answer = ask_nsad(socket, request);
  if (!answer) return unreachable(answer.error());
  if (answer->status != 200) {
    net::Response response;
    response.status = answer->status;
    response.body = answer->body;
    return response;
  }
  const auto detail = parse_json(answer->body, "nsad's answer", kAnswerLimits);
  if (!detail) return refuse(502, detail.error().what);
  const auto hangs = detail->find("hangs");
  if (hangs == detail->end() || !hangs->is_array() || asked.hang >= hangs->size())
    return refuse(404, "run " + asked.run + " has no hang " + std::to_string(asked.hang));
  const auto folder = (*hangs)[asked.hang].find("evidence_path");
  if (folder == (*hangs)[asked.hang].end() || !folder->is_string() ||
      folder->get_ref<const std::string&>().empty())
    return refuse(404, "no evidence was saved of this hang");
  return saved_files(folder->get<std::string>());
}

class Server : public PageServer {
public:
  Server(net::EventLoop& loop, PageOptions options)
      : options_(std::move(options)),
        offload_(loop, {.threads_of_owner = 4, .time = kTimeout + std::chrono::seconds(5)}) {}

  Status listen(net::EventLoop& loop) {
    auto handler = [this](const net::Request& request) { return handle(request); };
    auto server = net::HttpServer::listen_tcp(loop, "127.0.0.1", options_.port, handler);
    if (!server) return fail(std::move(server).error());
    server_ = std::move(*server);
    filter_ = std::make_unique<RequestFilter>(
        FilterRules{options_.token, server_->port(), options_.allow_actions});
    return {};
  }

  uint16_t port() const override { return server_->port(); }

private:
  net::Response handle(const net::Request& request) {
    Errand errand = filter_->judge(request);
    if (auto* response = std::get_if<net::Response>(&errand)) return secured(std::move(*response));
    if (const auto* file = std::get_if<PageFile>(&errand)) return secured(serve_file(*file));
    if (std::holds_alternative<Settings>(errand)) {
      net::Response response;
      response.body = settings(filter_->allows_actions()).dump() + "\n";
      return secured(std::move(response));
    }
    if (const auto* asked = std::get_if<HangEvidence>(&errand))
      return later([socket = options_.socket, asked = *asked] { return evidence(socket, asked); });
    return later([socket = options_.socket, request = std::get<Forward>(errand).request] {
      return forward(socket, request);
    });
  }

  template <class Work> net::Response later(Work work) {
    net::Response response;
    response.later = [this, work = std::move(work)](std::function<void(net::Response)> answer) {
      offload_.run({"page", "nsad's answer"}, work,
                   [answer = std::move(answer)](Result<net::Response> made) {
                     answer(secured(made ? std::move(*made) : unreachable(made.error())));
                   });
    };
    return response;
  }

  PageOptions options_;
  net::Offload offload_;
  std::unique_ptr<RequestFilter> filter_;
  std::unique_ptr<net::HttpServer> server_;
};

} // namespace

Result<std::unique_ptr<PageServer>> PageServer::start(net::EventLoop& loop, PageOptions options) {
  auto server = std::make_unique<Server>(loop, std::move(options));
  NSA_TRY(server->listen(loop));
  return server;
}

Result<std::string> make_token() {
  unsigned char bytes[16];
  ssize_t got = 0;
  do
    got = ::getrandom(bytes, sizeof bytes, 0);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof bytes)) return fail_errno("cannot make a random token");
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

} // namespace nsa::ui
