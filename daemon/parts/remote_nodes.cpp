#include "daemon/parts/remote_nodes.h"

#include "common/base/log.h"
#include "common/base/pass_descriptors.h"

#include <cstring>
#include <fcntl.h>
#include <future>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::parts {

using control::AttemptKey;
using state::ProcessReading;

namespace {
constexpr Duration kLook = std::chrono::milliseconds(500);
// Limit for a connected node that does not answer.
constexpr Duration kCallLimit = std::chrono::seconds(60);
// Bytes of one connection that wait for its supervisor.
constexpr size_t kMostWaiting = size_t{16} << 20;
constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMostRanks = 128; // ranks of a part
constexpr size_t kMostRanksOfRun = 1 << 16;

Error not_heard(const std::string& node) {
  return {ErrorCode::kUnavailable, "node " + node + " is not heard",
          "nsactl node ls shows since when"};
}

PartRef ref_of(const AttemptKey& key) {
  return {key.run, key.attempt};
}
} // namespace

RemoteNodes::RemoteNodes(net::EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), gate_(std::make_shared<Gate>()),
      begin_(MonotonicTime::now()) {
  gate_->loop = &loop;
  timer_ = loop_.every(kLook, [this] { look_for_orphans(); });
}

RemoteNodes::~RemoteNodes() {
  const std::lock_guard lock(gate_->mutex);
  gate_->loop = nullptr;
}

// A node that has not called since this nsad was started may have been lost at any time before.
RemoteNodes::Node& RemoteNodes::node_of(const std::string& name) {
  const auto [found, is_new] = nodes_.try_emplace(name);
  if (is_new) found->second.lost_at = begin_;
  return found->second;
}

bool RemoteNodes::is_ready(const std::string& node) const {
  const auto found = nodes_.find(node);
  return found != nodes_.end() && found->second.ready;
}

// ---- calls ------------------------------------------------------------------------------------

void RemoteNodes::call(const std::string& node, CallKind what, const AttemptKey& key,
                       nlohmann::json body, Answered done) {
  if (!is_ready(node)) return done(fail(not_heard(node)));
  const uint64_t id = ++last_id_;
  const Call call{id, what, ref_of(key), std::move(body)};
  if (auto sent = options_.send(node, frame_of(Message::kCall, call)); !sent)
    return done(fail(std::move(sent).error()));
  pending_[id] = {node, key, std::move(done)};
}

void RemoteNodes::on_answer(const std::string& node, const Answer& answer) {
  const auto found = pending_.find(answer.id);
  if (found == pending_.end() || found->second.node != node) return; // the call was given up
  const Answered done = std::move(found->second.done);
  const AttemptKey key = found->second.key;
  pending_.erase(found);
  if (answer.newer > 0 && options_.refused)
    options_.refused(node, "it refuses attempt " + std::to_string(key.attempt) + " of run " +
                               key.run + ", since it has ranks of attempt " +
                               std::to_string(answer.newer));
  if (answer.ok) return done(answer.body);
  done(fail(
      {static_cast<ErrorCode>(answer.code), "node " + node + ": " + answer.what, answer.next}));
}

template <class T, class Start> Result<T> RemoteNodes::wait_for(const Start& start) {
  const auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> answered = promise->get_future();
  {
    const std::lock_guard lock(gate_->mutex);
    if (gate_->loop == nullptr) return fail(ErrorCode::kUnavailable, "nsad is leaving");
    gate_->loop->post([gate = gate_, start, promise] {
      if (gate->loop == nullptr) return;
      start([promise](Result<T> result) { promise->set_value(std::move(result)); });
    });
  }
  if (answered.wait_for(kCallLimit) != std::future_status::ready)
    return fail(ErrorCode::kUnavailable, "a node has not answered in time");
  return answered.get();
}

Result<nlohmann::json> RemoteNodes::ask(const std::string& node, CallKind what,
                                        const AttemptKey& key, const nlohmann::json& body) {
  return wait_for<nlohmann::json>([this, node, what, key, body](Answered done) {
    call(node, what, key, body, std::move(done));
  });
}

Result<UniqueFd> RemoteNodes::connect(const std::string& node, const AttemptKey& key) {
  // A promise needs a copyable callback, and a UniqueFd is not copyable. So the callback passes the
  // descriptor's number.
  auto fd = wait_for<int>([this, node, key](const std::function<void(Result<int>)>& done) {
    open(node, key, [done](Result<UniqueFd> socket) {
      done(socket ? Result<int>(socket->release()) : fail(std::move(socket).error()));
    });
  });
  if (!fd) return fail(std::move(fd).error());
  return UniqueFd(*fd);
}

// ---- messages of nodes ------------------------------------------------------------------------

void RemoteNodes::take(const std::string& node, const wire::Frame& frame) {
  const auto refuse = [&](const Error& why) {
    log::warning("parts", "a node's message is not understood",
                 {{"node", node}, {"why", why.what}});
  };
  switch (static_cast<Message>(frame.type)) {
  case Message::kHeld: {
    const auto held = cluster::read_frame<Held>(frame);
    return held ? on_held(node, *held) : refuse(held.error());
  }
  case Message::kAnswer: {
    const auto answer = cluster::read_frame<Answer>(frame);
    return answer ? on_answer(node, *answer) : refuse(answer.error());
  }
  case Message::kEnded: {
    const auto ended = cluster::read_frame<Ended>(frame);
    if (!ended) return refuse(ended.error());
    const auto watch = watches_.find({node, {ended->part.run, ended->part.attempt}});
    if (watch != watches_.end() && !watch->second.left_at) watches_.erase(watch);
    return;
  }
  case Message::kBytes:
  case Message::kClosed:
  case Message::kProgress: {
    const auto read = read_stream_frame(frame);
    const auto found = read ? streams_.find(read->stream) : streams_.end();
    if (found == streams_.end() || found->second.node != node) return;
    if (frame.type == static_cast<uint8_t>(Message::kClosed)) return close(read->stream, false);
    if (frame.type == static_cast<uint8_t>(Message::kProgress))
      return take_progress(found->second, read->bytes);
    found->second.outgoing += read->bytes;
    return write_local(read->stream);
  }
  case Message::kCall:
  case Message::kPages:
  case Message::kAsk: // Offers takes it
  case Message::kPiece:
  case Message::kNoPiece:
  case Message::kPush:
  case Message::kPushed: // DataPushes takes it
  case Message::kGpus:   // GpusOfNodes takes it
    return;
  }
}

// The node has called, perhaps again. Messages over its older link are lost.
void RemoteNodes::on_held(const std::string& node, const Held& held) {
  drop_links_of(node);
  Node& heard = node_of(node);
  const MonotonicTime before = heard.ready ? MonotonicTime::now() : heard.lost_at;
  const WallTime joined = options_.joined_at ? options_.joined_at(node) : WallTime{};
  heard.ready = true;
  heard.clock.replace_with_next(); // the machine may have been restarted
  std::set<AttemptKey> parts;
  for (const PartRef& part : held.parts)
    parts.insert({part.run, part.attempt});
  for (auto watch = watches_.begin(); watch != watches_.end();) {
    const bool gone = watch->first.first == node && parts.count(watch->first.second) == 0;
    const bool elsewhere = gone && joined > watch->second.started;
    if (elsewhere && !watch->second.left_at) watch->second.left_at = before;
    watch = gone && !elsewhere ? watches_.erase(watch) : std::next(watch);
  }
  for (const AttemptKey& key : parts) {
    const AttemptNumber epoch = options_.epoch_of ? options_.epoch_of(key.run) : 0;
    if (epoch > 0 && key.attempt > epoch && options_.refused)
      options_.refused(node, "it claims ranks of attempt " + std::to_string(key.attempt) +
                                 " of run " + key.run + ", whose newest is " +
                                 std::to_string(epoch));
    if (watches_.count({node, key}) != 0 || options_.is_wanted(key)) continue;
    log::warning("parts", "a node has ranks of an attempt that is over; ending them",
                 {{"node", node}, {"run", key.run}, {"attempt", std::to_string(key.attempt)}});
    call(node, CallKind::kEnd, key, nullptr, [](const Result<nlohmann::json>&) {});
  }
}

void RemoteNodes::on_lost(const std::string& node) {
  Node& lost = node_of(node);
  if (lost.ready) lost.lost_at = MonotonicTime::now();
  lost.ready = false;
  drop_links_of(node);
}

void RemoteNodes::drop_links_of(const std::string& node) {
  std::vector<uint64_t> streams;
  for (const auto& [id, stream] : streams_)
    if (stream.node == node) streams.push_back(id);
  for (const uint64_t id : streams)
    close(id, false);
  std::vector<Answered> given_up;
  for (auto call = pending_.begin(); call != pending_.end();) {
    if (call->second.node != node) {
      ++call;
      continue;
    }
    given_up.push_back(std::move(call->second.done));
    call = pending_.erase(call);
  }
  for (const Answered& done : given_up)
    done(fail(not_heard(node)));
}

// ---- the end of parts -------------------------------------------------------------------------

Result<UniqueFd> RemoteNodes::watch(const std::string& node, const AttemptKey& key,
                                    WallTime started) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("cannot make a pipe");
  node_of(node);
  watches_[{node, key}] = {UniqueFd(ends[1]), started, std::nullopt};
  return UniqueFd(ends[0]);
}

void RemoteNodes::forget(const std::string& node, const AttemptKey& key) {
  watches_.erase({node, key});
  node_of(node).pages_at.erase(key);
  readings_.erase(key);
}

void RemoteNodes::look_for_orphans() {
  const MonotonicTime now = MonotonicTime::now();
  for (auto watch = watches_.begin(); watch != watches_.end();) {
    const auto& [name, key] = watch->first;
    const Node& node = node_of(name);
    const MonotonicTime heard = watch->second.left_at ? *watch->second.left_at
                                : node.ready          ? now
                                                      : node.lost_at;
    if (now - heard < options_.orphan_limit) {
      ++watch;
      continue;
    }
    log::warning("parts", "a node was not heard for so long that its ranks have ended themselves",
                 {{"node", name}, {"run", key.run}});
    watch = watches_.erase(watch);
  }
}

// ---- connections to shims ---------------------------------------------------------------------

void RemoteNodes::open(const std::string& node, const AttemptKey& key,
                       std::function<void(Result<UniqueFd>)> done) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return done(fail_errno("cannot make a socket"));
  const uint64_t id = ++last_id_;
  const auto theirs = std::make_shared<UniqueFd>(ends[1]);
  Stream& stream = streams_[id];
  stream.node = node;
  stream.key = key;
  stream.sender = &node_of(node);
  stream.local = UniqueFd(ends[0]);
  call(node, CallKind::kOpen, key, {{"stream", id}},
       [this, id, theirs, done = std::move(done)](Result<nlohmann::json> answer) {
         const auto found = streams_.find(id);
         if (!answer || found == streams_.end()) {
           streams_.erase(id);
           return done(fail(answer ? Error{ErrorCode::kUnavailable, "the link was cut", ""}
                                   : std::move(answer).error()));
         }
         found->second.readable =
             loop_.when_readable(found->second.local.get(), [this, id] { read_local(id); });
         done(std::move(*theirs));
       });
}

void RemoteNodes::close(uint64_t id, bool tell) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (tell) (void)options_.send(found->second.node, stream_frame(Message::kClosed, id));
  streams_.erase(found);
}

void RemoteNodes::read_local(uint64_t id) {
  char bytes[kReadBytes];
  Stream& stream = streams_.at(id);
  const ssize_t got = ::recv(stream.local.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return close(id, true);
  // Requests that cannot be sent are repeated over the next connection.
  if (!options_.send(stream.node,
                     stream_frame(Message::kBytes, id, {bytes, static_cast<size_t>(got)})))
    close(id, true);
}

void RemoteNodes::write_local(uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  while (!stream.outgoing.empty()) {
    std::vector<int> pages;
    if (!stream.passed_pages)
      for (const progress::Page& page : stream.mirrors)
        pages.push_back(page.fd());
    const ssize_t put = send_with_descriptors(stream.local.get(), stream.outgoing, pages);
    if (put < 0 && errno != EAGAIN) return close(id, true);
    if (put <= 0) break;
    stream.passed_pages = true;
    stream.outgoing.erase(0, static_cast<size_t>(put));
  }
  if (stream.outgoing.size() > kMostWaiting) return close(id, true); // the shim keeps the messages
  if (stream.outgoing.empty())
    stream.writable.reset();
  else if (!stream.writable)
    stream.writable = loop_.when_writable(stream.local.get(), [this, id] { write_local(id); });
}

// ---- progress pages ---------------------------------------------------------------------------

std::optional<ProcessReading> RemoteNodes::reading(const AttemptKey& key, Rank rank) const {
  const auto found = readings_.find(key);
  if (found == readings_.end()) return std::nullopt;
  const auto index = static_cast<size_t>(rank);
  return index < found->second.size() ? found->second[index] : std::nullopt;
}

MonotonicTime RemoteNodes::pages_at(const std::string& node, const AttemptKey& key) const {
  const auto sender = nodes_.find(node);
  if (sender == nodes_.end()) return begin_;
  const auto found = sender->second.pages_at.find(key);
  return found == sender->second.pages_at.end() ? begin_ : found->second;
}

MonotonicTime RemoteNodes::here(const std::string& node, int64_t monotonic_ns) const {
  const auto found = nodes_.find(node);
  const auto here = found == nodes_.end() ? std::nullopt : found->second.clock.here(monotonic_ns);
  return here.value_or(MonotonicTime::now());
}

namespace {
// Reads the next record of `bytes`; false if there is none.
template <class T> bool take_as_it_is(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}
} // namespace

void RemoteNodes::take_progress(Stream& stream, std::string_view bytes) {
  const MonotonicTime now = MonotonicTime::now();
  stream.sender->pages_at[stream.key] = now;
  ClockDifference& clock = stream.sender->clock;
  auto& readings = readings_[stream.key];
  PageRecord record;
  for (size_t index = 0; index < kMostRanks && take_as_it_is(bytes, record); ++index) {
    clock.note(record.monotonic_ns, now);
    const auto rank = static_cast<size_t>(record.rank);
    if (record.rank < 0 || rank >= kMostRanksOfRun) return;
    if (readings.size() <= rank) readings.resize(rank + 1);
    if (!record.has_host && !record.has_device) readings[rank] = record.process;
    progress::Page* page = mirror(stream, index, record.rank);
    if (page == nullptr || !write_news(*page, record, now, bytes)) return;
  }
}

// The local copy of the rank's page; null if there cannot be one.
progress::Page* RemoteNodes::mirror(Stream& stream, size_t index, Rank rank) {
  if (index < stream.mirrors.size()) return &stream.mirrors[index];
  if (index > stream.mirrors.size() || stream.passed_pages) return nullptr;
  auto page = progress::Page::create(rank, stream.key.attempt);
  return page ? &stream.mirrors.emplace_back(std::move(*page)) : nullptr;
}

// Returns false if `bytes` end too early. Times are by the other node's clock.
bool RemoteNodes::write_news(progress::Page& page, const PageRecord& record, MonotonicTime now,
                             std::string_view& bytes) {
  progress::HostRecord host;
  progress::DeviceRecord device;
  if (record.has_host && !take_as_it_is(bytes, host)) return false;
  if (record.has_device && !take_as_it_is(bytes, device)) return false;
  progress::Collective collective;
  for (int i = 0; i < record.collectives; ++i) {
    if (!take_as_it_is(bytes, collective)) return false;
    if (collective.number != 0) page.write_collective(collective);
  }
  if (record.has_host) {
    const int64_t difference = now.nanoseconds - record.monotonic_ns;
    host.phase_start_ns += difference;
    host.step_start_ns += difference;
    page.write_host(host);
  }
  if (!record.has_device) return true;
  page.write_device(progress::DeviceWord::kCompletedStep, device.completed_step);
  page.write_device(progress::DeviceWord::kPosition, device.position.word());
  page.write_device(progress::DeviceWord::kStarted, device.started);
  page.write_device(progress::DeviceWord::kCompleted, device.completed);
  return true;
}

} // namespace nsa::parts
