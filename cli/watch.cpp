#include "cli/watch.h"

#include "cli/client/interrupt.h"
#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/render/follow_screen.h"

#include <poll.h>

namespace nsa::cli {

namespace {

// In user mode the shim restarts nsad at once. After this time nsactl starts it too, if it may.
constexpr Duration kReconnectPatience = std::chrono::seconds(5);
constexpr int kReconnectMilliseconds = 100;

enum class Reconnect { kDone, kInterrupted };

Result<Reconnect> reconnect(const Context& context, client::Daemon& daemon, int interrupt_fd) {
  const MonotonicTime deadline = MonotonicTime::now() + kReconnectPatience;
  while (MonotonicTime::now() < deadline) {
    if (auto again = connect(context, false)) {
      daemon = std::move(*again);
      return Reconnect::kDone;
    }
    pollfd interrupt{interrupt_fd, POLLIN, 0};
    if (::poll(&interrupt, 1, kReconnectMilliseconds) > 0) return Reconnect::kInterrupted;
  }
  NSA_TRY_ASSIGN(daemon, connect(context));
  return Reconnect::kDone;
}

Status fetch_missed(client::Daemon& daemon, const std::string& run, const Watcher& watcher) {
  if (!watcher.missed) return {};
  constexpr size_t kPage = 1000;
  int64_t after = watcher.after();
  while (true) {
    NSA_TRY_ASSIGN(const auto json,
                   daemon.get(client::run_target(run, "/events?limit=" + std::to_string(kPage) +
                                                          "&after=" + std::to_string(after))));
    NSA_TRY_ASSIGN(const auto events, client::read_items<wire::EventView>(json));
    watcher.missed(events);
    if (events.size() < kPage) return {};
    after = events.back().sequence;
  }
}

} // namespace

Result<net::StreamEnd> follow_through_restarts(const Context& context, client::Daemon& daemon,
                                               const Lasting& stream) {
  while (true) {
    const auto end = daemon.follow(stream.target(), stream.options);
    if (end) return *end;
    // If nsad cut the stream off because this reader was slow, this just asks again. Any other
    // error counts as an answer, unless the daemon has gone.
    const bool broken =
        end.error().code == ErrorCode::kUnavailable || end.error().code == ErrorCode::kSystem;
    if (!broken && end.error().code != ErrorCode::kExhausted) return fail(end.error());
    if (broken) stream.note("nsad has ended; the ranks continue, waiting for the next nsad");
    NSA_TRY_ASSIGN(const Reconnect back, reconnect(context, daemon, stream.options.interrupt_fd));
    if (back == Reconnect::kInterrupted) return net::StreamEnd::kInterrupted;
    if (broken) stream.note("nsad is back");
  }
}

Result<WatchEnd> watch_run(const Context& context, client::Daemon& daemon, const std::string& run,
                           const Watcher& watcher) {
  const client::Interrupt interrupt;
  bool ended = false, first = true;
  Status failure;
  Lasting stream;
  stream.note = watcher.note;
  stream.target = [&] {
    first = true;
    return client::run_target(run, "/follow");
  };
  stream.options.tick = watcher.tick;
  stream.options.interrupt_fd = interrupt.fd();
  stream.options.line = [&](const nlohmann::json& json) {
    const auto line = client::read_as<wire::FollowLine>(json);
    if (!line) return failure = fail(line.error()), false;
    // The stream has begun, so fetching the missed events now leaves no gap.
    if (std::exchange(first, false)) failure = fetch_missed(daemon, run, watcher);
    if (!failure) return false;
    ended = line->type == wire::LineType::kEnd;
    return watcher.line(*line) && !ended;
  };
  NSA_TRY_ASSIGN(const net::StreamEnd end, follow_through_restarts(context, daemon, stream));
  if (!failure) return fail(failure.error());
  if (end == net::StreamEnd::kInterrupted) return WatchEnd::kInterrupted;
  return ended || end == net::StreamEnd::kEnded ? WatchEnd::kEnded : WatchEnd::kEnough;
}

Result<Exit> follow_on_screen(Context& context, client::Daemon& daemon, const std::string& run,
                              int64_t after, bool inject_said) {
  Io& io = context.io;
  const bool json = context.output == Output::kJson;
  const render::Style style{io.colour, io.unicode};
  render::FollowScreen screen(io.out, {style, io.out_is_terminal, io.current_width, inject_said},
                              WallTime::now);
  int64_t shown = after;
  wire::RunSummary last;
  Watcher watcher;
  watcher.after = [&] { return std::max(shown, screen.last_sequence()); };
  watcher.tick = [&] {
    if (!json) screen.tick();
    return true;
  };
  watcher.note = [&](const std::string& text) {
    if (json)
      io.err << text << "\n";
    else
      screen.note(text);
  };
  watcher.missed = [&](const std::vector<wire::EventView>& events) {
    std::vector<wire::EventView> unseen;
    for (const wire::EventView& event : events)
      if (event.sequence > shown) unseen.push_back(event);
    if (!json) return screen.replay(unseen);
    for (const wire::EventView& event : unseen) {
      wire::FollowLine line;
      line.type = wire::LineType::kEvent;
      line.event = event;
      io.out << json_text(nlohmann::json(line)) << std::endl;
      shown = event.sequence;
    }
  };
  watcher.line = [&](const wire::FollowLine& line) {
    if (!line.summary.state.empty()) last = line.summary;
    if (!json) return screen.line(line), true;
    if (line.type == wire::LineType::kEvent) {
      if (line.event.sequence <= shown) return true;
      shown = line.event.sequence;
    }
    // Each line at once, because this is a stream.
    io.out << json_text(nlohmann::json(line)) << std::endl;
    return true;
  };
  const auto end = watch_run(context, daemon, run, watcher);
  screen.finish();
  if (!end) return fail(end.error());
  if (*end == WatchEnd::kInterrupted) {
    io.err << "detached; the run continues\n";
    hint(context, {"nsactl follow " + run, "nsactl status " + run, "nsactl stop " + run});
    return Exit::kInterrupted;
  }
  // In JSON, the line of type "end" has reported it.
  return json ? exit_of_end(last) : tell_end(context, daemon, run);
}

} // namespace nsa::cli
