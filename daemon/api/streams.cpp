// The routes that answer line by line. A stream's state is owned by its connection (the when_closed
// callback holds it); everything else holds it weakly. So it goes with the connection, whoever ends
// first: reader, run or server.
#include "daemon/api/log_reader.h"
#include "daemon/api/reply.h"
#include "daemon/api/routes.h"

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

class EventFollower : public Follower {
public:
  EventFollower(net::EventLoop& loop, StreamPtr stream, int64_t after)
      : Follower(loop, std::move(stream)), last_(after) {}

  // What is stored goes out before what the subscription brings.
  void replay(const std::vector<wire::EventView>& stored) {
    for (const wire::EventView& event : stored)
      send(event);
    replayed_ = true;
    for (const wire::EventView& event : early_)
      send(event);
    early_.clear();
    if (ended_) stream->end();
  }

private:
  void on_line(const wire::FollowLine& line) override {
    if (line.type == "event") replayed_ ? send(line.event) : early_.push_back(line.event);
    if (line.type != "end") return;
    ended_ = true;
    if (replayed_) stream->end();
  }
  void send(const wire::EventView& event) {
    if (event.sequence <= last_) return;
    last_ = event.sequence;
    stream->write(json_line(event));
  }

  int64_t last_;
  std::vector<wire::EventView> early_;
  bool replayed_ = false, ended_ = false;
};

constexpr size_t kQueueGoal = 128 << 10; // below it more is read
constexpr int kLinesATurn = 2000;        // then others get their turn
constexpr Duration kLogPoll = std::chrono::milliseconds(200);

class LogFollower : public Follower {
public:
  LogFollower(net::EventLoop& loop, StreamPtr stream, Service& service, Call call, LogQuery query)
      : Follower(loop, std::move(stream)), service_(service), call_(std::move(call)),
        query_(std::move(query)) {}

  void begin(const std::vector<LogSource>& sources) {
    merge_.add(sources, call_.tail);
    if (call_.tail) {
      // The last N of all ranks together are among the last N of each.
      std::deque<wire::LogLine> last;
      while (auto line = merge_.next()) {
        if (wanted(*line)) last.push_back(std::move(*line));
        if (last.size() > static_cast<size_t>(*call_.tail)) last.pop_front();
      }
      std::string lines;
      for (const wire::LogLine& line : last)
        lines += json_line(line);
      stream->write(lines);
    }
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
    if (std::exchange(look_again_, false) && query_.attempt == 0)
      if (const auto sources = service_.logs(query_)) merge_.add(*sources, std::nullopt);
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
  bool look_again_ = false, run_ended_ = false, finishing_ = false;
};

} // namespace

net::Response Routes::follow(const RunId& run) {
  return line_stream([this, run](StreamPtr stream) {
    std::make_shared<SummaryFollower>(loop_, std::move(stream))->start(service_, run);
  });
}

net::Response Routes::events(const Call& call, const RunId& run) {
  const EventQuery query{run, call.after, static_cast<int>(call.limit)};
  auto stored = service_.events(query);
  if (!stored) return reply_error(stored.error());
  if (!call.follow) return reply_items(*stored);
  return line_stream(
      [this, run, after = call.after, stored = std::move(*stored)](StreamPtr stream) {
        const auto follower = std::make_shared<EventFollower>(loop_, std::move(stream), after);
        follower->start(service_, run);
        follower->replay(stored);
      });
}

net::Response Routes::logs(const Call& call, const RunId& run) {
  const LogQuery query{run, call.attempt, call.rank};
  auto sources = service_.logs(query);
  if (!sources) return reply_error(sources.error());
  return line_stream([this, call, query, sources = std::move(*sources)](StreamPtr stream) {
    std::make_shared<LogFollower>(loop_, std::move(stream), service_, call, query)->begin(sources);
  });
}

} // namespace nsa::api
