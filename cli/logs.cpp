#include "cli/client/interrupt.h"
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/watch.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/net/http.h"

#include <map>
#include <optional>

namespace nsa::cli {

namespace {

constexpr int64_t kTailWhenFollowing = 10;

// The position up to which each rank's log has been printed.
using Positions = std::map<std::pair<AttemptNumber, Rank>, std::string>;

// `since` is a time, so that it stays the same when the stream is requested again.
std::string target_of(const Arguments& arguments, const std::string& since,
                      const Positions& positions) {
  std::string query;
  const auto add = [&](const std::string& name, const std::string& value = {}) {
    query += (query.empty() ? "?" : "&") + name;
    if (!value.empty()) query += "=" + net::encode_component(value);
  };
  const bool follow = arguments.has("follow");
  if (arguments.has("rank")) add("rank", arguments.text("rank"));
  if (arguments.has("attempt")) add("attempt", arguments.text("attempt"));
  if (!since.empty()) add("since", since);
  if (follow) {
    add("follow");
    add("positions");
  }
  if (!positions.empty()) {
    std::vector<std::string> from;
    for (const auto& [rank, position] : positions)
      from.push_back(position);
    add("from", join(from, ","));
  } else if (arguments.has("tail")) {
    add("tail", arguments.text("tail"));
  } else if (follow && since.empty()) {
    add("tail", std::to_string(kTailWhenFollowing));
  }
  return client::run_target(arguments.text("RUN"), "/logs" + query);
}

std::string print(const wire::LogLine& line, bool ranks, bool times, bool raw,
                  const render::Style& style) {
  std::string text;
  if (times) text += line.time + " ";
  if (ranks)
    text +=
        render::paint("[rank " + std::to_string(line.rank) + "]", render::Colour::kCyan, style) +
        " ";
  return text + (raw ? line.bytes : line.text);
}

// Explains an empty output: which logs were searched, and when the newest line was written.
Status explain_silence(client::Daemon& daemon, const Arguments& arguments, Context& context) {
  std::string query = "?tail=1", whose = "the ranks";
  if (arguments.has("attempt")) query += "&attempt=" + arguments.text("attempt");
  if (arguments.has("rank") && arguments.text("rank") != "all") {
    query += "&rank=" + arguments.text("rank");
    whose = "rank " + arguments.text("rank");
  }
  std::optional<WallTime> newest;
  client::FollowOptions options;
  options.line = [&](const nlohmann::json& json) {
    if (const auto line = client::read_as<wire::LogLine>(json))
      if (const auto time = wire::parse_rfc3339(line->time)) newest = WallTime{*time};
    return true;
  };
  NSA_TRY(daemon.follow(client::run_target(arguments.text("RUN"), "/logs" + query), options));
  const WallTime now = WallTime::now();
  if (newest && arguments.has("since"))
    context.io.err << whose << " wrote nothing in the last " << arguments.text("since")
                   << "; the newest line is of " << render::clock_time(*newest, now) << " ("
                   << render::age(*newest, now) << " ago)\n";
  else if (!newest)
    context.io.err << whose << " wrote nothing"
                   << (arguments.has("attempt") ? " in attempt " + arguments.text("attempt") : "")
                   << "\n";
  return {};
}

Status check_rank(const std::string& rank) {
  const bool is_number = !rank.empty() && rank.find_first_not_of("0123456789") == rank.npos;
  if (rank == "all" || is_number) return {};
  return fail(ErrorCode::kInvalidArgument,
              "--rank takes the number of a rank or all, not '" + rank + "'",
              "leave it out to see all ranks, or write --rank 0");
}

Result<Exit> run_logs(const Arguments& arguments, Context& context) {
  NSA_TRY(check_rank(arguments.text("rank", "all")));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const render::Style style{context.io.colour, context.io.unicode};
  const bool ranks = !arguments.has("rank") || arguments.text("rank") == "all";
  const bool follow = arguments.has("follow");
  const std::string since =
      arguments.has("since")
          ? format_rfc3339(WallTime::now() + from_seconds(-arguments.seconds("since", 0)))
          : "";
  const client::Interrupt interrupt;
  Positions positions;
  bool silent = true;
  Status failure;
  Lasting stream;
  stream.target = [&] { return target_of(arguments, since, positions); };
  stream.note = [&](const std::string& text) { context.io.err << text << "\n"; };
  stream.options.interrupt_fd = interrupt.fd();
  stream.options.line = [&](const nlohmann::json& json) {
    const auto line = client::read_as<wire::LogLine>(json);
    if (!line) return failure = fail(line.error()), false;
    if (line->stream == wire::LogStream::kPosition) {
      if (!line->text.empty())
        context.io.err << "rank " << line->rank << ": " << printable(line->text) << "\n";
    } else if (context.output == Output::kJson) {
      context.io.out << json_text(json) << "\n";
    } else {
      context.io.out << print(*line, ranks, arguments.has("timestamps"), context.raw, style)
                     << "\n";
    }
    silent = false;
    if (!follow) return context.io.out.good();
    context.io.out.flush();
    positions[{line->attempt, line->rank}] = line->position;
    return context.io.out.good();
  };
  const auto end = follow ? follow_through_restarts(context, daemon, stream)
                          : daemon.follow(stream.target(), stream.options);
  if (!end) return fail(end.error());
  if (!failure) return fail(failure.error());
  if (*end == net::StreamEnd::kEnded && silent && !follow)
    NSA_TRY(explain_silence(daemon, arguments, context));
  if (*end != net::StreamEnd::kInterrupted) return Exit::kDone;
  if (follow) context.io.err << "detached; the run continues\n";
  return Exit::kInterrupted;
}

} // namespace

Verb logs_verb() {
  Verb verb;
  verb.name = "logs";
  verb.summary = "Print what the ranks wrote, in the order of time";
  verb.positionals = {run_argument()};
  verb.options = {
      follow_option("print new lines as they come, also of later attempts, until the run ends"),
      {"rank", 'r', ValueType::kText, "N|all", "one rank (default: all, each line marked)"},
      {"tail", 'n', ValueType::kInteger, "N", "only the last N lines (10 with --follow)"},
      {"since", 0, ValueType::kDuration, "TIME", "only lines of the last 90s, 10m, 2h, 1d"},
      {"attempt", 0, ValueType::kInteger, "N", "only this attempt (default: the newest)"},
      {"timestamps", 't', ValueType::kFlag, "", "print the time of each line"}};
  verb.examples = {{"nsactl logs -f @last", "as they come"},
                   {"nsactl logs k3fm2 --rank 1 --tail 50", "the end of one rank"},
                   {"nsactl logs k3fm2 --attempt 1 --since 10m -t", "what the first attempt said"}};
  verb.run = run_logs;
  return verb;
}

} // namespace nsa::cli
