// The routes that answer line by line. A stream's connection owns the stream's state, because the
// when_closed callback holds it. All other references are weak. So the state is destroyed with the
// connection, whichever of reader, run and server ends first.
#include "common/base/text.h"
#include "common/wire/run_row.h"
#include "daemon/api/log_reader.h"
#include "daemon/api/reply.h"
#include "daemon/api/routes.h"

namespace nsa::api {

namespace {

using StreamPtr = std::shared_ptr<net::Stream>;

// Follows the lines of a run. It may end inside its own callback.
class Follower : public std::enable_shared_from_this<Follower> {
public:
  Follower(net::EventLoop& loop, StreamPtr stream) : loop(loop), stream(std::move(stream)) {}
  virtual ~Follower() = default;

  // `on_line` may call end().
  void start(Queries& queries, const RunId& run) {
    stream->when_closed([self = shared_from_this()] {});
    subscription = queries.follow(run, [weak = weak_from_this()](const wire::FollowLine& line) {
      const auto self = weak.lock();
      if (!self || !self->stream->is_open()) return;
      self->on_line(line);
      // The subscription must not be destroyed inside its own callback.
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
    if (stream->write(json_line(line)) && line.type == wire::LineType::kEnd) stream->end();
  }
};

constexpr size_t kQueueGoal = 128 << 10; // more is read while fewer bytes are queued
constexpr int kEventsAPage = 200;        // events read in one turn of the loop
constexpr size_t kMaxLogs = 1024;        // most files that one request may hold open
constexpr Duration kLogPoll = std::chrono::milliseconds(200);

// Sends a long list page by page, as fast as the client reads it. The loop runs between two pages.
// It ends by itself, or with its connection.
class PagedList : public std::enable_shared_from_this<PagedList> {
public:
  using Read = std::function<Result<ListPage>()>; // reads the next page
  PagedList(net::EventLoop& loop, StreamPtr stream, Read read, std::string end)
      : loop_(loop), stream_(std::move(stream)), read_(std::move(read)), end_(std::move(end)) {}

  void begin(const std::string& start, const ListPage& first) {
    stream_->when_closed([self = shared_from_this()] {});
    stream_->when_drained([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->pump();
    });
    stream_->write(start);
    take(first);
  }

private:
  void pump() {
    if (waiting_ || !stream_->is_open() || stream_->queued() >= kQueueGoal) return;
    const auto page = read_();
    if (page) return take(*page);
    // The text stays incomplete and is no JSON, so the client notices the failure.
    stream_->end();
  }
  void take(const ListPage& page) {
    std::string text;
    for (const std::string& item : page.items)
      text += (std::exchange(comma_, true) ? "," : "") + item;
    if (!page.more) text += end_;
    const bool open = stream_->write(text);
    if (!page.more) return stream_->end();
    if (!open) return;
    waiting_ = true;
    loop_.post([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      self->waiting_ = false;
      self->pump();
    });
  }

  net::EventLoop& loop_;
  StreamPtr stream_;
  Read read_;
  std::string end_;
  bool comma_ = false, waiting_ = false;
};

// Sends the stored events page by page, as above, and then new ones. Each event is a line.
class EventFollower : public Follower {
public:
  EventFollower(net::EventLoop& loop, StreamPtr stream, Queries& queries, EventQuery query)
      : Follower(loop, std::move(stream)), queries_(queries), query_(std::move(query)) {}

  void begin(const EventPage& first_page) {
    const auto self = std::static_pointer_cast<EventFollower>(shared_from_this());
    stream->when_drained([weak = std::weak_ptr(self)] {
      if (const auto self = weak.lock()) self->pump();
    });
    start(queries_, query_.run);
    take(first_page);
  }

private:
  void on_line(const wire::FollowLine& line) override {
    if (line.type == wire::LineType::kEvent && live_)
      send({line.event}); // a page will contain it otherwise
    if (line.type != wire::LineType::kEnd) return;
    ended_ = true;
    if (live_) stream->end();
  }
  void pump() {
    if (live_ || waiting_ || !stream->is_open() || stream->queued() >= kQueueGoal) return;
    const auto page = queries_.events(query_);
    if (!page) return stream->end(); // the run was removed meanwhile
    take(*page);
  }
  void take(const EventPage& page) {
    send(page.events);
    query_.after = std::max(query_.after, page.next);
    live_ = !page.more;
    if (live_ && ended_) return stream->end();
    if (live_) return;
    waiting_ = true;
    loop.post([weak = weak_from_this()] {
      const auto self = std::static_pointer_cast<EventFollower>(weak.lock());
      if (!self) return;
      self->waiting_ = false;
      self->pump();
    });
  }
  void send(const std::vector<wire::EventView>& events) {
    std::string text;
    for (const wire::EventView& event : events) {
      if (event.sequence <= query_.after) continue;
      query_.after = event.sequence;
      text += json_line(event);
    }
    stream->write(text);
  }

  Queries& queries_;
  EventQuery query_;
  bool live_ = false, waiting_ = false, ended_ = false; // live_: all stored events are sent
};

// Returns the logs of all attempts from `first` on, so that a late or returning reader misses none.
Result<std::vector<LogSource>> sources_since(Queries& queries, LogQuery query,
                                             AttemptNumber first) {
  NSA_TRY_ASSIGN(std::vector<LogSource> sources, queries.logs(query));
  if (query.attempt != 0 || sources.empty() || first == 0) return sources;
  const AttemptNumber newest = sources.front().attempt;
  for (query.attempt = first; query.attempt < newest; ++query.attempt)
    if (const auto earlier = queries.logs(query))
      sources.insert(sources.end(), earlier->begin(), earlier->end());
  return sources;
}

// Another thread reads the files, one piece at a time. It reads the next piece when the client has
// taken most of the last one.
class LogFollower : public Follower {
public:
  LogFollower(net::EventLoop& loop, StreamPtr stream, Queries& queries, net::Offload& readers,
              const Call& call, LogQuery query, std::vector<LogSource> sources)
      : Follower(loop, std::move(stream)), queries_(queries), readers_(readers),
        query_(std::move(query)), follow_(call.follow) {
    note_newest(sources);
    pieces_ = std::make_shared<LogPieces>(
        std::move(sources), LogPieces::Options{{call.tail, call.from}, call.since, call.positions});
  }

  void begin() {
    const auto self = std::static_pointer_cast<LogFollower>(shared_from_this());
    stream->when_drained([weak = std::weak_ptr(self)] {
      if (const auto self = weak.lock()) self->pump();
    });
    stream->when_closed([self] {});
    pump();
  }

private:
  // Starts after the first piece. So when the run's end is reported, all that was written before it
  // has been read.
  void watch_run() {
    const auto self = std::static_pointer_cast<LogFollower>(shared_from_this());
    start(queries_, query_.run);
    poll_ = loop.every(kLogPoll, [weak = std::weak_ptr(self)] {
      if (const auto self = weak.lock()) self->poll();
    });
  }

  void note_newest(const std::vector<LogSource>& sources) {
    for (const LogSource& source : sources)
      newest_ = std::max(newest_, source.attempt);
  }

  void on_line(const wire::FollowLine& line) override {
    if (line.type == wire::LineType::kState || line.type == wire::LineType::kEnd)
      look_again_ = true; // a new attempt may have started
    if (line.type == wire::LineType::kEnd) run_ended_ = true;
  }

  void poll() {
    // All lines from before the run's end are in the files now.
    const bool last_look = run_ended_;
    if (std::exchange(look_again_, false))
      if (auto sources = sources_since(queries_, query_, newest_)) {
        note_newest(*sources);
        added_.insert(added_.end(), sources->begin(), sources->end());
      }
    if (last_look) finishing_ = true;
    at_end_ = false;
    pump();
  }

  void pump() {
    if (reading_ || at_end_ || !stream->is_open() || stream->queued() >= kQueueGoal) return;
    reading_ = true;
    const bool last = !follow_ || finishing_; // no more lines will come
    const auto self = std::static_pointer_cast<LogFollower>(shared_from_this());
    readers_.run(
        {"", "the logs of run " + query_.run},
        [pieces = pieces_, added = std::exchange(added_, {})]() -> Result<LogPieces::Piece> {
          if (!added.empty()) pieces->add(added);
          return pieces->next();
        },
        [weak = std::weak_ptr(self), last](const Result<LogPieces::Piece>& piece) {
          if (const auto self = weak.lock()) self->take(piece, last);
        });
  }

  void take(const Result<LogPieces::Piece>& piece, bool last) {
    reading_ = false;
    if (!piece) {
      stream->write(json_line({{"type", wire::LineType::kCutOff}, {"what", piece.error().what}}));
      return stream->end();
    }
    if (!piece->lines.empty() && !stream->write(piece->lines)) return;
    at_end_ = piece->at_end;
    if (at_end_ && last) return stream->end();
    if (follow_ && !poll_) watch_run();
    pump();
  }

  Queries& queries_;
  net::Offload& readers_;
  LogQuery query_;
  bool follow_;
  std::shared_ptr<LogPieces> pieces_; // the reading thread uses it
  std::vector<LogSource> added_;      // logs of attempts that have begun since
  net::Timer poll_;
  AttemptNumber newest_ = 0;
  bool reading_ = false, at_end_ = false;
  bool look_again_ = false, run_ended_ = false, finishing_ = false;
};

// Another thread reads metrics.jsonl, one piece at a time.
class MetricsReader : public std::enable_shared_from_this<MetricsReader> {
public:
  MetricsReader(StreamPtr stream, net::Offload& readers, net::Offload::Job job,
                MetricRecords records)
      : stream_(std::move(stream)), readers_(readers), job_(std::move(job)),
        records_(std::make_shared<MetricRecords>(std::move(records))) {}

  void begin() {
    stream_->when_closed([self = shared_from_this()] {});
    stream_->when_drained([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->pump();
    });
    pump();
  }

private:
  void pump() {
    if (reading_ || !stream_->is_open() || stream_->queued() >= kQueueGoal) return;
    reading_ = true;
    readers_.run(
        job_, [records = records_] { return records->next(); },
        [weak = weak_from_this()](const Result<MetricRecords::Piece>& piece) {
          if (const auto self = weak.lock()) self->take(piece);
        });
  }
  void take(const Result<MetricRecords::Piece>& piece) {
    reading_ = false;
    if (!piece) {
      stream_->write(json_line({{"type", wire::LineType::kCutOff}, {"what", piece.error().what}}));
      return stream_->end();
    }
    if (!piece->lines.empty() && !stream_->write(piece->lines)) return;
    if (piece->at_end) return stream_->end();
    pump();
  }

  StreamPtr stream_;
  net::Offload& readers_;
  net::Offload::Job job_;
  std::shared_ptr<MetricRecords> records_; // the reading thread uses it
  bool reading_ = false;
};

} // namespace

net::Response Routes::metric_records(const Call& call, const RunId& run) {
  if (call.metrics.points > 0 && call.metrics.metrics.empty())
    return reply_error({ErrorCode::kInvalidArgument, "points needs metrics",
                        "name them: metrics=loss,tokens_per_second"});
  if (call.metrics.points == 0 &&
      (call.metrics.coarse || call.metrics.first_step > 0 || call.metrics.last_step < INT64_MAX))
    return reply_error({ErrorCode::kInvalidArgument, "coarse, first_step and last_step need points",
                        "say how many records: points=1000"});
  const Queries::MetricsSource source = queries_.metrics_source(run);
  return line_stream([this, run, source, query = call.metrics](StreamPtr stream) {
    std::make_shared<MetricsReader>(std::move(stream), readers_,
                                    net::Offload::Job{"", "the metrics of run " + run},
                                    MetricRecords(source.path, source.open, query, metric_cache_))
        ->begin();
  });
}

net::Response Routes::follow(const RunId& run) {
  return line_stream([this, run](StreamPtr stream) {
    std::make_shared<SummaryFollower>(loop_, std::move(stream))->start(queries_, run);
  });
}

net::Response Routes::paged_list(const std::string& start, std::function<Result<ListPage>()> read,
                                 const std::string& end) {
  auto first = read();
  if (!first) return reply_error(first.error());
  if (!first->more) { // the answer is complete, and the connection stays open
    net::Response response;
    response.body = start + join(first->items, ",") + end;
    return response;
  }
  return line_stream(
      [this, start, read = std::move(read), end, first = std::move(*first)](StreamPtr stream) {
        std::make_shared<PagedList>(loop_, std::move(stream), read, end)->begin(start, first);
      },
      false);
}

net::Response Routes::runs(const Call& call, const Caller& caller) {
  const std::string columns =
      call.rows ? "\"columns\":" + dump(nlohmann::json(wire::run_columns())) + "," : "";
  RunQuery query;
  query.all = call.all;
  query.rows = call.rows;
  return paged_list(
      "{" + columns + "\"total\":" + std::to_string(queries_.run_count()) + ",\"items\":[",
      [this, query, caller]() mutable -> Result<ListPage> {
        NSA_TRY_ASSIGN(RunPage page, queries_.list(query, caller));
        query = std::move(page.next);
        return std::move(page.list);
      },
      "]}\n");
}

net::Response Routes::events(const Call& call, const RunId& run) {
  EventQuery query{run, call.after, kEventsAPage};
  if (call.tail) {
    const auto start = queries_.events_before_last(run, *call.tail);
    if (!start) return reply_error(start.error());
    query.after = std::max(query.after, *start);
  }
  if (!call.follow)
    return paged_list(
        "{\"items\":[",
        [this, query, left = call.tail ? *call.tail : call.limit]() mutable -> Result<ListPage> {
          query.limit = static_cast<int>(std::min<int64_t>(left, kEventsAPage));
          NSA_TRY_ASSIGN(const EventPage page, queries_.events(query));
          ListPage list;
          for (const wire::EventView& event : page.events)
            list.items.push_back(dump(event));
          query.after = page.next;
          left -= static_cast<int64_t>(page.events.size());
          list.more = page.more && left > 0;
          return list;
        },
        "]}\n");
  auto first = queries_.events(query);
  if (!first) return reply_error(first.error());
  return line_stream([this, query, first = std::move(*first)](StreamPtr stream) {
    std::make_shared<EventFollower>(loop_, std::move(stream), queries_, query)->begin(first);
  });
}

net::Response Routes::logs(const Call& call, const RunId& run) {
  const LogQuery query{run, call.attempt, call.rank};
  AttemptNumber first = 0;
  for (const LogPosition& position : call.from)
    first = first == 0 ? position.attempt : std::min(first, position.attempt);
  auto sources = sources_since(queries_, query, first);
  if (!sources) return reply_error(sources.error());
  if (sources->empty() && !call.follow)
    return reply_error({ErrorCode::kNotFound, "run " + run + " has no log: it has not started yet",
                        "wait for it with nsactl logs -f " + run +
                            ", or see why it waits: " + "nsactl status " + run});
  if (sources->size() > kMaxLogs)
    return reply_error({ErrorCode::kExhausted,
                        std::to_string(sources->size()) + " logs at once are too many",
                        "ask for one attempt: nsactl logs " + run + " --attempt N"});
  return line_stream([this, call, query, sources = std::move(*sources)](StreamPtr stream) {
    std::make_shared<LogFollower>(loop_, std::move(stream), queries_, readers_, call, query,
                                  sources)
        ->begin();
  });
}

} // namespace nsa::api
