#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/ui/page_server.h"

#include <csignal>
#include <cstdlib>
#include <pwd.h>
#include <sstream>
#include <unistd.h>

namespace nsa::cli {

namespace {

// Returns the command for the user's own machine if this one is reached by ssh. SSH_CONNECTION
// holds the client's address and port, then the server's.
std::string ssh_line(uint16_t port) {
  const char* connection = std::getenv("SSH_CONNECTION");
  if (!connection) return {};
  std::istringstream words(connection);
  std::string client, client_port, server, server_port;
  if (!(words >> client >> client_port >> server >> server_port)) return {};
  const passwd* user = ::getpwuid(::geteuid());
  const std::string number = std::to_string(port);
  return "ssh -N -L " + number + ":127.0.0.1:" + number +
         (server_port == "22" ? "" : " -p " + server_port) + " " +
         (user ? std::string(user->pw_name) + "@" : "") + server;
}

void say_where(Context& context, const std::string& url, uint16_t port, bool actions) {
  const std::string ssh = ssh_line(port);
  if (context.output == Output::kJson) {
    context.io.out << json_text(nlohmann::json{{"url", url}, {"port", port}, {"ssh", ssh}})
                   << std::endl;
    return;
  }
  context.io.out << url << std::endl;
  if (context.quiet) return;
  if (!ssh.empty()) context.io.err << "on your own machine first: " << ssh << "\n";
  context.io.err << (actions
                         ? "anybody with this URL may stop, cancel and resume your runs\n"
                         : "the page only reads; --allow-actions lets it stop and resume runs\n")
                 << "Ctrl-C ends the page; runs continue\n";
}

Result<Exit> run_ui(const Arguments& arguments, Context& context) {
  const int64_t port = arguments.integer("port", 0);
  if (port < 0 || port > 65535)
    return fail(ErrorCode::kInvalidArgument, "no port has the number " + std::to_string(port),
                "take one from 1024 to 65535, or leave out --port");
  NSA_TRY_ASSIGN(const client::Daemon daemon, connect(context));
  ui::PageOptions options;
  options.socket = daemon.socket();
  options.port = static_cast<uint16_t>(port);
  options.allow_actions = arguments.has("allow-actions");
  NSA_TRY_ASSIGN(options.token, ui::make_token());

  net::EventLoop loop;
  auto server = ui::PageServer::start(loop, options);
  if (!server) {
    Error error = std::move(server).error();
    error.next = "leave out --port to take any free one: nsactl ui";
    return fail(std::move(error));
  }
  const net::Watch ends = loop.when_signalled({SIGINT, SIGTERM}, [&](int) { loop.stop(); });
  const uint16_t bound = (*server)->port();
  say_where(context, "http://127.0.0.1:" + std::to_string(bound) + "/?token=" + options.token,
            bound, options.allow_actions);
  loop.run();
  return Exit::kDone;
}

} // namespace

Verb ui_verb() {
  Verb verb;
  verb.name = "ui";
  verb.summary = "Show runs as a page in the browser";
  verb.detail =
      "Prints the URL of a page that this nsactl serves on 127.0.0.1 until Ctrl-C. Who has the URL "
      "sees your runs. The page only reads, unless --allow-actions is given. Over ssh the port is "
      "forwarded by the line that is printed: docs/ui.md.";
  verb.options = {
      {"port", 0, ValueType::kInteger, "N", "TCP port on loopback (default: any free one)"},
      {"allow-actions", 0, ValueType::kFlag, "", "let the page stop, cancel and resume runs"}};
  verb.examples = {{"nsactl ui", "on a free port"},
                   {"nsactl ui --port 8123", "on this one, to forward it over ssh"},
                   {"nsactl ui --allow-actions", "with buttons that stop and resume runs"}};
  verb.run = run_ui;
  return verb;
}

} // namespace nsa::cli
