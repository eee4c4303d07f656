#include "cli/client/interrupt.h"
#include "cli/columns.h"
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/follow_screen.h"
#include "cli/watch.h"

namespace nsa::cli {

namespace {

constexpr size_t kEventPage = 1000;

std::string base_target(const Arguments& arguments) {
  return arguments.has("RUN") ? client::run_target(arguments.text("RUN"), "/events") : "/v1/events";
}

Result<std::vector<wire::EventView>> fetch_all(client::Daemon& daemon, const std::string& target,
                                               const std::string& tail) {
  std::vector<wire::EventView> events;
  if (!tail.empty()) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(target + "?tail=" + tail));
    return client::read_items<wire::EventView>(answer);
  }
  while (true) {
    const int64_t after = events.empty() ? 0 : events.back().sequence;
    NSA_TRY_ASSIGN(const auto answer, daemon.get(target + "?limit=" + std::to_string(kEventPage) +
                                                 "&after=" + std::to_string(after)));
    NSA_TRY_ASSIGN(const auto page, client::read_items<wire::EventView>(answer));
    events.insert(events.end(), page.begin(), page.end());
    if (page.size() < kEventPage) return events;
  }
}

void print(const wire::EventView& event, bool with_run, Context& context) {
  const auto view = view_options(context);
  std::string line = render::event_line(event, WallTime::now(), view.style, view.wide);
  if (with_run) line = event.run + " " + line;
  context.io.out << line << "\n";
}

Result<Exit> run_events(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const bool json = context.output == Output::kJson, all = !arguments.has("RUN");
  const std::string target = base_target(arguments);
  const std::string tail = arguments.text("tail");
  if (arguments.has("follow") && arguments.has("columns"))
    return fail(ErrorCode::kInvalidArgument, "--columns is for a list, not for --follow",
                "use -o json with --follow");
  if (!arguments.has("follow")) {
    NSA_TRY_ASSIGN(const auto events, fetch_all(daemon, target, tail));
    if (arguments.has("columns")) {
      NSA_TRY(print_columns(context, nlohmann::json(events), arguments.text("columns")));
      return Exit::kDone;
    }
    if (json) context.io.out << json_text(nlohmann::json{{"items", events}}) << "\n";
    for (const wire::EventView& event : events)
      if (!json) print(event, all, context);
    return Exit::kDone;
  }
  const client::Interrupt interrupt;
  int64_t last = 0;
  Status failure;
  Lasting stream;
  stream.target = [&] {
    if (last == 0 && !tail.empty()) return target + "?follow&tail=" + tail;
    return target + "?follow&after=" + std::to_string(last);
  };
  stream.note = [&](const std::string& text) { context.io.err << text << "\n"; };
  stream.options.interrupt_fd = interrupt.fd();
  stream.options.line = [&](const nlohmann::json& line) {
    const auto event = client::read_as<wire::EventView>(line);
    if (!event) return failure = fail(event.error()), false;
    if (json)
      context.io.out << json_text(line) << "\n";
    else
      print(*event, all, context);
    context.io.out.flush();
    last = event->sequence;
    return context.io.out.good();
  };
  NSA_TRY_ASSIGN(const net::StreamEnd end, follow_through_restarts(context, daemon, stream));
  if (!failure) return fail(failure.error());
  if (end != net::StreamEnd::kInterrupted) return Exit::kDone;
  context.io.err << "detached; the run continues\n";
  return Exit::kInterrupted;
}

} // namespace

Verb events_verb() {
  Verb verb;
  verb.name = "events";
  verb.summary = "Print what happened: states, failures, hangs with their evidence, checkpoints";
  verb.positionals = {run_argument()};
  verb.positionals[0].required = false;
  verb.positionals[0].meaning += " (default: all runs)";
  verb.options = {follow_option("print new events as they come, until the run ends"),
                  {"tail", 'n', ValueType::kInteger, "N", "only the last N events"},
                  columns_option("at,kind,rank,text")};
  verb.examples = {{"nsactl events k3fm2", "why a run is in its state"},
                   {"nsactl events -f --tail 0", "what happens on this node from now on"},
                   {"nsactl events k3fm2 -o json", "with the facts behind each event"}};
  verb.run = run_events;
  return verb;
}

} // namespace nsa::cli
