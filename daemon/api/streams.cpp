// The routes that answer line by line. A stream's state is owned by its connection (the when_closed
// callback holds it); everything else holds it weakly. So it goes with the connection, whoever ends
// first: reader, run or server.
#include "daemon/api/log_reader.h"
#include "daemon/api/reply.h"
#include "daemon/api/routes.h"

#include <deque>
#include <map>

namespace nsa::api {

namespace {

using StreamPtr = std::shared_ptr<net::Stream>;

// A follower of the service that may end from inside its own callback.
class Follower : public std::enable_shared_from_this<Follower> {
public:
  Follower(net::EventLoop& loop, StreamPtr stream) : loop(loop), stream(std::move(stream)) {}
  virtual ~Follower() = default;

  // `on_line` may call end().
  void start(Service& service, const RunId& run) {
    stream->when_closed([self = shared_from_this()] {});
    subscription = service.follow(run, [weak = weak_from_this()](const wire::FollowLine& line) {
      const auto self = weak.lock();
      if (!self || !self->stream->is_open()) return;
      self->on_line(line);
      // The subscription must not die inside its own callback.
      if (!self->stream->is_open()) self->loop.post([self] {});
    });
  }

protected:
  virtual void on_line(const wire::FollowLine& line) = 0;

  net::EventLoop& loop;
  StreamPtr stream;
  std::unique_ptr<Subscription> subscription;
};

class SummaryFollower : public Follower {
public:
  using Follower::Follower;

private:
  void on_line(const wire::FollowLine& line) override {
    if (stream->write(json_line(line)) && line.type == "end") stream->end();
  }
};

constexpr size_t kQueueGoal = 128 << 10; // below it more is read
constexpr int kLinesATurn = 2000;        // then others get their turn
constexpr Duration kLogPoll = std::chrono::milliseconds(200);

// What is stored page by page, as fast as the reader takes it; then what comes.
class EventFollower : public Follower {
public:
  EventFollower(net::EventLoop& loop, StreamPtr stream, Service& service, EventQuery query)
      : Follower(loop, std::move(stream)), service_(service), query_(std::move(query)) {}

  void begin(const std::vector<wire::EventView>& first_page) {
    const auto self = std::static_pointer_cast<EventFollower>(shared_from_this());
    stream->when_drained([weak = std::weak_ptr(self)] {
      if (const auto self = weak.lock()) self->pump();
    });
    start(service_, query_.run);
    for (const wire::EventView& event : first_page)
      send(event);
    pump();
  }

private:
  void on_line(const wire::FollowLine& line) override {
    if (line.type == "event" && live_) send(line.event); // before that it is found by a page
    if (line.type != "end") return;
    ended_ = true;
    if (live_) stream->end();
  }
  void pump() {
    query_.newest = false;
    while (!live_ && stream->is_open() && stream->queued() < kQueueGoal) {
      const auto page = service_.events(query_);
      if (!page) return stream->end();
      for (const wire::EventView& event : *page)
        send(event);
      live_ = page->size() < static_cast<size_t>(query_.limit);
    }
    if (live_ && ended_) stream->end();
  }
  void send(const wire::EventView& event) {
    if (event.sequence <= query_.after) return;
    query_.after = event.sequence;
    stream->write(json_line(event));
  }

  Service& service_;
  EventQuery query_;
  bool live_ = false, ended_ = false;
};

// The logs of all attempts from `first` on: who looks late, or comes back, misses none.
Result<std::vector<LogSource>> sources_since(Service& service, LogQuery query,
                                             AttemptNumber first) {
  NSA_TRY_ASSIGN(std::vector<LogSource> sources, service.logs(query));
  if (query.attempt != 0 || sources.empty() || first == 0) return sources;
  const AttemptNumber newest = sources.front().attempt;
  for (query.attempt = first; query.attempt < newest; ++query.attempt)
    if (const auto earlier = service.logs(query))
      sources.insert(sources.end(), earlier->begin(), earlier->end());
  return sources;
}

class LogFollower : public Follower {
public:
  LogFollower(net::EventLoop& loop, StreamPtr stream, Service& service, Call call, LogQuery query)
      : Follower(loop, std::move(stream)), service_(service), call_(std::move(call)),
        query_(std::move(query)) {}

  void begin(const std::vector<LogSource>& sources) {
    add(sources, {call_.tail, call_.from});
    std::map<std::pair<AttemptNumber, Rank>, wire::LogLine> begins;
    for (wire::LogLine& position : merge_.positions())
      begins[{position.attempt, position.rank}] = std::move(position);
    std::deque<wire::LogLine> last;
    if (call_.tail) {
      const auto leave_out = [&](const wire::LogLine& line) {
        begins[{line.attempt, line.rank}].position = line.position;
      };
      // The last N of all ranks together are among the last N of each.
      while (auto line = merge_.next()) {
        if (!wanted(*line)) {
          leave_out(*line);
          continue;
        }
        last.push_back(std::move(*line));
        if (last.size() <= static_cast<size_t>(*call_.tail)) continue;
        leave_out(last.front());
        last.pop_front();
      }
    }
    std::string lines;
    if (call_.positions)
      for (const auto& [rank, position] : begins)
        lines += json_line(position);
    for (const wire::LogLine& line : last)
      lines += json_line(line);
    if (!lines.empty()) stream->write(lines);
    const auto self = std::static_pointer_cast<LogFollower>(shared_from_this());
    stream->when_drained([weak = std::weak_ptr(self)] {
      if (const auto self = weak.lock()) self->pump();
    });
    if (call_.follow) {
      start(service_, query_.run);
      poll_ = loop.every(kLogPoll, [weak = std::weak_ptr(self)] {
        if (const auto self = weak.lock()) self->poll();
      });
    } else {
      stream->when_closed([self] {});
    }
    pump();
  }

private:
  void add(const std::vector<LogSource>& sources, const LogStart& start = {}) {
    merge_.add(sources, start);
    for (const LogSource& source : sources)
      newest_ = std::max(newest_, source.attempt);
  }

  bool wanted(const wire::LogLine& line) const {
    if (call_.since.empty() || line.time.empty()) return true;
    // Both UTC in one format: without the final Z, texts order as times.
    const auto digits = [](std::string_view time) { return time.substr(0, time.size() - 1); };
    return digits(line.time) >= digits(call_.since);
  }

  void on_line(const wire::FollowLine& line) override {
    if (line.type == "state" || line.type == "end") look_again_ = true; // a new attempt, perhaps
    if (line.type == "end") run_ended_ = true;
  }

  void poll() {
    // What the ranks wrote before the run's end is in the files by now.
    const bool last_look = run_ended_;
    if (std::exchange(look_again_, false))
      if (const auto sources = sources_since(service_, query_, newest_)) add(*sources);
    if (last_look) finishing_ = true;
    pump();
  }

  void pump() {
    if (!stream->is_open()) return;
    int turns = kLinesATurn;
    while (stream->queued() < kQueueGoal) {
      if (turns-- == 0) {
        const auto self = std::static_pointer_cast<LogFollower>(shared_from_this());
        loop.post([weak = std::weak_ptr(self)] {
          if (const auto self = weak.lock()) self->pump();
        });
        return;
      }
      const auto line = merge_.next();
      if (!line) {
        if (!call_.follow || finishing_) {
          loop.post([self = shared_from_this()] {});
          stream->end();
        }
        return;
      }
      if (wanted(*line) && !stream->write(json_line(*line))) return;
    }
  }

  Service& service_;
  Call call_;
  LogQuery query_;
  LogMerge merge_;
  net::Timer poll_;
  AttemptNumber newest_ = 0;
  bool look_again_ = false, run_ended_ = false, finishing_ = false;
};

} // namespace

net::Response Routes::follow(const RunId& run) {
  return line_stream([this, run](StreamPtr stream) {
    std::make_shared<SummaryFollower>(loop_, std::move(stream))->start(service_, run);
  });
}

net::Response Routes::events(const Call& call, const RunId& run) {
  EventQuery query{run, call.after, static_cast<int>(call.limit), false};
  if (call.tail) {
    query.newest = true;
    query.limit = static_cast<int>(std::max<int64_t>(*call.tail, 1));
  }
  auto stored = service_.events(query);
  if (!stored) return reply_error(stored.error());
  if (call.tail == 0) {
    if (!stored->empty()) query.after = stored->back().sequence;
    stored->clear();
  }
  if (!call.follow) return reply_items(*stored);
  query.limit = static_cast<int>(call.limit);
  return line_stream([this, query, stored = std::move(*stored)](StreamPtr stream) {
    std::make_shared<EventFollower>(loop_, std::move(stream), service_, query)->begin(stored);
  });
}

net::Response Routes::logs(const Call& call, const RunId& run) {
  const LogQuery query{run, call.attempt, call.rank};
  AttemptNumber first = 0;
  for (const LogPosition& position : call.from)
    first = first == 0 ? position.attempt : std::min(first, position.attempt);
  auto sources = sources_since(service_, query, first);
  if (!sources) return reply_error(sources.error());
  if (sources->empty() && !call.follow)
    return reply_error({ErrorCode::kNotFound, "run " + run + " has no log: it has not started yet",
                        "wait for it with nsactl logs -f " + run +
                            ", or see why it waits: " + "nsactl status " + run});
  return line_stream([this, call, query, sources = std::move(*sources)](StreamPtr stream) {
    std::make_shared<LogFollower>(loop_, std::move(stream), service_, call, query)->begin(sources);
  });
}

} // namespace nsa::api
