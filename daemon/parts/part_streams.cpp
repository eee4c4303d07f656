// The head's connections to the shims of a node, and the progress pages that are sent over them.
#include "common/base/pass_descriptors.h"
#include "daemon/parts/part_server.h"
#include "daemon/supervision/live_shims.h"
#include "daemon/supervision/rank_watch.h"

#include <cstring>
#include <iterator>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::parts {

void PartServer::open(const Call& call) {
  const Key key{call.part.run, call.part.attempt};
  auto socket = shim::connect_socket(folder_of(key));
  if (!socket) return answer(call.id, fail(std::move(socket).error()));
  const auto id = call.body.value("stream", uint64_t{0});
  answer(call.id, nlohmann::json(true));
  Stream& stream = streams_[id];
  stream.part = key;
  stream.socket = std::move(*socket);
  stream.readable = loop_.when_readable(stream.socket.get(), [this, id] { read(id); });
}

void PartServer::close(uint64_t id, bool tell) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  if (tell) {
    (void)send_held(id, found->second);
    (void)options_.send(stream_frame(Message::kClosed, id));
  }
  streams_.erase(found);
}

void PartServer::take_bytes(uint64_t id, std::string_view bytes) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.outgoing += bytes;
  write(id);
}

void PartServer::write(uint64_t id) {
  Stream& stream = streams_.at(id);
  while (!stream.outgoing.empty()) {
    const ssize_t put = ::send(stream.socket.get(), stream.outgoing.data(), stream.outgoing.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    // The shim has gone; reading detects that, after its last messages.
    if (put < 0 && errno != EAGAIN) return;
    if (put <= 0) break;
    stream.outgoing.erase(0, static_cast<size_t>(put));
  }
  if (stream.outgoing.empty())
    stream.writable.reset();
  else if (!stream.writable)
    stream.writable = loop_.when_writable(stream.socket.get(), [this, id] { write(id); });
}

void PartServer::read(uint64_t id) {
  Stream& stream = streams_.at(id);
  // A slow link must not fill our memory. Unread messages wait in the shim, and on its disk.
  if (options_.queued_bytes() > kMostQueued) {
    constexpr Duration kResume = std::chrono::milliseconds(20);
    stream.readable.reset();
    stream.resume = loop_.after(kResume, [this, id] {
      const auto found = streams_.find(id);
      if (found == streams_.end()) return;
      found->second.readable =
          loop_.when_readable(found->second.socket.get(), [this, id] { read(id); });
    });
    return;
  }
  constexpr size_t kReadBytes = 64 * 1024, kMostPages = 128;
  char bytes[kReadBytes];
  ReceivedBytes got = receive_with_descriptors(stream.socket.get(), {bytes, sizeof bytes},
                                               kMostPages, MSG_DONTWAIT);
  if (got.count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got.count <= 0) return close(id, true);
  for (UniqueFd& fd : got.descriptors) {
    auto page = progress::Page::open(std::move(fd), false);
    if (!page) return close(id, true);
    stream.pages.push_back(std::move(*page));
    stream.sent.emplace_back();
  }
  if (!got.descriptors.empty()) {
    if (const auto started = shim::read_started(folder_of(stream.part)))
      for (const wire::RankIdentity& rank : started->ranks)
        stream.pids.push_back(rank.pid);
    send_pages(id, stream); // pages go before the hello that counts them
  }
  const std::string_view said(bytes, static_cast<size_t>(got.count));
  stream.held += said;
  const bool may_wait = stream.rank_words.are_all(said) && stream.held.size() < kMostHeld;
  if (!may_wait && !send_held(id, stream)) close(id, false);
}

// False: the link accepts nothing.
bool PartServer::send_held(uint64_t id, Stream& stream) {
  const std::string held = std::exchange(stream.held, {});
  return held.empty() || options_.send(stream_frame(Message::kBytes, id, held));
}

void PartServer::tell_progress() {
  for (auto each = streams_.begin(); each != streams_.end();) {
    auto& [id, stream] = *each;
    const bool sent = send_held(id, stream);
    if (sent) send_pages(id, stream);
    each = sent ? std::next(each) : streams_.erase(each);
  }
}

namespace {
template <class T> void append_as_it_is(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
} // namespace

void PartServer::send_pages(uint64_t id, Stream& stream) {
  if (stream.pages.empty() || options_.queued_bytes() > kMostQueued) return;
  const MonotonicTime now = MonotonicTime::now();
  bool is_new = false;
  std::string body;
  for (size_t i = 0; i < stream.pages.size(); ++i) {
    PageSent& sent = stream.sent[i];
    PageRecord record;
    record.rank = stream.pages[i].rank();
    record.monotonic_ns = now.nanoseconds;
    // The host's record is read first, so that the collectives read next include all that it counts
    // as enqueued.
    const auto host = stream.pages[i].read_host();
    const progress::DeviceRecord device = stream.pages[i].read_device();
    record.has_host = host && host != sent.host;
    record.has_device = device != sent.device;
    const size_t at = body.size();
    append_as_it_is(body, record);
    if (record.has_host) append_as_it_is(body, *host);
    if (record.has_device) append_as_it_is(body, device);
    if (record.has_host || record.has_device) {
      const progress::CollectiveRing ring = stream.pages[i].read_collectives();
      for (size_t slot = 0; slot < ring.slots.size(); ++slot) {
        const progress::Collective& collective = ring.slots[slot];
        if (collective.number == 0 || collective == sent.collectives.slots[slot]) continue;
        append_as_it_is(body, collective);
        sent.collectives.slots[slot] = collective;
        ++record.collectives;
      }
      is_new = true;
    } else if (i < stream.pids.size()) {
      // A rank without progress is inspected, as on the head's own node.
      if (const auto reading = control::read_process(stream.pids[i])) record.process = *reading;
    }
    std::memcpy(body.data() + at, &record, sizeof record);
    if (record.has_host) sent.host = host;
    sent.device = device;
  }
  // Interval for unchanged pages. The head looks for hangs only if it has received pages within the
  // last second.
  constexpr Duration kStillInterval = std::chrono::milliseconds(400);
  if (!is_new && now - stream.sent_at < kStillInterval) return;
  stream.sent_at = now;
  if (!options_.send(stream_frame(Message::kProgress, id, body)))
    stream.sent.assign(stream.sent.size(), {}); // the next message repeats everything
}

} // namespace nsa::parts
