#include "cli/client/interrupt.h"
#include "cli/connect.h"
#include "cli/parts.h"
#include "common/net/http.h"

namespace nsa::cli {

namespace {

constexpr int64_t kTailWhenFollowing = 10;

Result<std::string> target_of(const Arguments& arguments, const std::string& run) {
  std::string query;
  const auto add = [&](const std::string& name, const std::string& value) {
    query += (query.empty() ? "?" : "&") + name + "=" + net::encode_component(value);
  };
  const bool follow = arguments.has("follow");
  if (follow) query = "?follow";
  if (arguments.has("rank")) add("rank", arguments.text("rank"));
  if (arguments.has("attempt")) add("attempt", arguments.text("attempt"));
  if (arguments.has("tail"))
    add("tail", arguments.text("tail"));
  else if (follow && !arguments.has("since"))
    add("tail", std::to_string(kTailWhenFollowing));
  if (arguments.has("since"))
    add("since", format_rfc3339(WallTime::now() + from_seconds(-arguments.seconds("since", 0))));
  return client::run_target(run, "/logs" + query);
}

std::string print(const wire::LogLine& line, bool ranks, bool times, const render::Style& style) {
  std::string text;
  if (times) text += line.time + " ";
  if (ranks)
    text +=
        render::paint("[rank " + std::to_string(line.rank) + "]", render::Colour::kCyan, style) +
        " ";
  return text + line.text;
}

Result<Exit> run_logs(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const std::string target, target_of(arguments, arguments.text("RUN")));
  const render::Style style{context.io.colour, context.io.unicode};
  const bool ranks = !arguments.has("rank") || arguments.text("rank") == "all";
  const bool follow = arguments.has("follow");
  const client::Interrupt interrupt;
  Status failure;
  client::FollowOptions options;
  options.interrupt_fd = interrupt.fd();
  options.line = [&](const nlohmann::json& json) {
    if (context.output == Output::kJson) {
      context.io.out << json.dump() << "\n";
    } else {
      const auto line = client::read_as<wire::LogLine>(json);
      if (!line) return failure = fail(line.error()), false;
      context.io.out << print(*line, ranks, arguments.has("timestamps"), style) << "\n";
    }
    if (follow) context.io.out.flush();
    return context.io.out.good();
  };
  NSA_TRY_ASSIGN(const net::StreamEnd end, daemon.follow(target, options));
  if (!failure) return fail(failure.error());
  if (end != net::StreamEnd::kInterrupted) return Exit::kDone;
  if (follow) context.io.err << "detached; the run goes on\n";
  return Exit::kInterrupted;
}

} // namespace

Verb logs_verb() {
  Verb verb;
  verb.name = "logs";
  verb.summary = "Print what the ranks wrote, in the order of time";
  verb.positionals = {run_argument()};
  verb.options = {
      follow_option("go on as lines come, into later attempts, until the run ends"),
      {"rank", 'r', ValueType::kText, "N|all", "one rank (default: all, each line marked)"},
      {"tail", 'n', ValueType::kInteger, "N", "only the last N lines (10 with --follow)"},
      {"since", 0, ValueType::kDuration, "TIME", "only lines of the last 90s, 10m, 2h, 1d"},
      {"attempt", 0, ValueType::kInteger, "N", "of this attempt (default: the newest)"},
      {"timestamps", 't', ValueType::kFlag, "", "with the time of each line"}};
  verb.examples = {{"nsactl logs -f @last", "as they come"},
                   {"nsactl logs k3fm2 --rank 1 --tail 50", "the end of one rank"},
                   {"nsactl logs k3fm2 --attempt 1 --since 10m -t", "what the first attempt said"}};
  verb.run = run_logs;
  return verb;
}

} // namespace nsa::cli
