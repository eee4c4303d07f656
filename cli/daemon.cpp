// Implements `daemon start`, `stop`, `status` and `logs`.
#include "cli/client/interrupt.h"
#include "cli/client/start.h"
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/net/paths.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::cli {

namespace {

constexpr int kPollMilliseconds = 100;
constexpr Duration kStopLimit = std::chrono::seconds(10);

Result<Exit> run_start(const Arguments&, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto status, daemon.get("/v1/daemon"));
  if (context.output == Output::kJson)
    context.io.out << json_text(status) << "\n";
  else
    context.io.out << "nsad " << (daemon.was_started() ? "started" : "is already running")
                   << ", pid " << status.value("pid", 0) << ", " << daemon.socket() << "\n";
  hint(context, {"nsactl daemon status", "nsactl daemon stop"});
  return Exit::kDone;
}

Result<Exit> run_stop(const Arguments&, Context& context) {
  auto daemon = connect(context, false);
  if (!daemon && daemon.error().code == ErrorCode::kUnavailable) {
    context.io.err << "nsad is not running\n";
    return Exit::kDone;
  }
  if (!daemon) return fail(daemon.error());
  const auto before = daemon->get("/v1/daemon");
  NSA_TRY(daemon->post("/v1/daemon/stop"));
  // nsad has ended if its process has ended, or if nothing listens any more.
  const int pid = before ? before->value("pid", 0) : 0;
  const MonotonicTime deadline = MonotonicTime::now() + kStopLimit;
  const auto is_gone = [&] {
    if (pid > 0) return ::kill(pid, 0) != 0 && errno == ESRCH;
    return !net::HttpClient::connect_unix(daemon->socket());
  };
  while (!is_gone()) {
    if (MonotonicTime::now() > deadline)
      return fail(ErrorCode::kExhausted, "nsad has not ended within 10 s", "nsactl daemon logs");
    ::poll(nullptr, 0, kPollMilliseconds / 5);
  }
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json{{"stopped", true}, {"pid", pid}}) << "\n";
  else
    context.io.out << "nsad stopped; live ranks continue, and the next nsad adopts them\n";
  return Exit::kDone;
}

// Formats a value by the unit at the end of its key.
std::string fact_text(const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned() && key.ends_with("_bytes"))
    return format_bytes(value.get<uint64_t>());
  if (const auto time = integer_of<int64_t>(value); time && key.ends_with("_at"))
    return format_rfc3339({*time});
  return value.dump();
}

// Prints one line for each fact. Nested objects become names such as "slots.free".
void print_facts(const nlohmann::json& facts, const std::string& prefix, std::ostream& out) {
  for (const auto& [key, value] : facts.items()) {
    if (value.is_object()) {
      print_facts(value, prefix + key + ".", out);
      continue;
    }
    std::string name = prefix + key;
    name.resize(std::max<size_t>(name.size() + 1, 24), ' ');
    out << name << fact_text(key, value) << "\n";
  }
}

Result<Exit> run_daemon_status(const Arguments&, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context, false));
  NSA_TRY_ASSIGN(auto status, daemon.get("/v1/daemon"));
  status["socket"] = daemon.socket();
  status["daemon"] = daemon.is_system() ? "system" : "user";
  if (context.output == Output::kJson)
    context.io.out << json_text(status) << "\n";
  else
    print_facts(status, "", context.io.out);
  return Exit::kDone;
}

// nsad's log contains text of ranks and other users, so whole lines are printed in a form that is
// safe for a terminal.
void print_lines(std::string& text, Context& context) {
  const size_t end = text.rfind('\n') + 1; // 0 if there is no whole line yet
  const std::string lines = text.substr(0, end);
  context.io.out << (context.raw ? lines : printable(lines, LineBreaks::kKeep)) << std::flush;
  text.erase(0, end);
}

// Prints what is added to the log until Ctrl-C. Starts again if the file was truncated.
Result<Exit> follow_file(const std::string& path, Context& context) {
  const client::Interrupt interrupt;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno("cannot open " + path);
  off_t at = ::lseek(fd.get(), 0, SEEK_END);
  std::string text;
  while (context.io.out.good()) {
    struct stat info{};
    if (::fstat(fd.get(), &info) == 0 && info.st_size < at) at = ::lseek(fd.get(), 0, SEEK_SET);
    char chunk[1 << 14];
    ssize_t got;
    while ((got = ::read(fd.get(), chunk, sizeof chunk)) > 0) {
      text.append(chunk, static_cast<size_t>(got));
      at += got;
      print_lines(text, context);
    }
    pollfd wake{interrupt.fd(), POLLIN, 0};
    if (::poll(&wake, 1, kPollMilliseconds) > 0) return Exit::kInterrupted;
  }
  return Exit::kDone;
}

Result<Exit> run_daemon_logs(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const net::NodePaths paths, net::user_paths());
  if (context.system)
    return fail(ErrorCode::kUnsupported, "the system's nsad logs to the journal",
                "journalctl -u nsad");
  if (::access(paths.log.c_str(), R_OK) != 0)
    return fail(ErrorCode::kNotFound, "your own nsad has no log at " + paths.log,
                "the system's nsad logs to the journal: journalctl -u nsad");
  std::string tail =
      client::tail_of_file(paths.log, static_cast<int>(arguments.integer("tail", 50)));
  if (!tail.empty() && tail.back() != '\n') tail += "\n";
  print_lines(tail, context);
  if (!arguments.has("follow")) return Exit::kDone;
  return follow_file(paths.log, context);
}

} // namespace

Verb daemon_start_verb() {
  Verb verb;
  verb.name = "daemon start";
  verb.summary = "Start nsad for this user, if it is not running";
  verb.detail = "Commands that need nsad start it automatically.";
  verb.examples = {{"nsactl daemon start", "for instance after an upgrade"}};
  verb.run = run_start;
  return verb;
}

Verb daemon_stop_verb() {
  Verb verb;
  verb.name = "daemon stop";
  verb.summary = "End nsad; ranks continue without it";
  verb.detail = "To end runs, use `stop` or `cancel` first. Nothing is lost: the shims keep the "
                "messages of ranks until nsad runs again.";
  verb.examples = {{"nsactl daemon stop && nsactl daemon start", "use a new build of nsad"}};
  verb.run = run_stop;
  return verb;
}

Verb daemon_status_verb() {
  Verb verb;
  verb.name = "daemon status";
  verb.summary = "Show the running nsad: pid, socket, folders, metrics address, slots";
  verb.detail = "Exit code 6 if no nsad is running.";
  verb.examples = {{"nsactl daemon status -o json", "for scripts"}};
  verb.run = run_daemon_status;
  return verb;
}

Verb daemon_logs_verb() {
  Verb verb;
  verb.name = "daemon logs";
  verb.summary = "Print the log of an nsad that was started on demand";
  verb.options = {follow_option("print new lines as they come"),
                  {"tail", 'n', ValueType::kInteger, "N", "the last N lines (default: 50)"}};
  verb.examples = {{"nsactl daemon logs -n 200", "its recent past"}};
  verb.run = run_daemon_logs;
  return verb;
}

} // namespace nsa::cli
