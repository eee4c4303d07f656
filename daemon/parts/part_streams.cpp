// The head's connections to the shims of a node, and the progress pages that go over them.
#include "common/base/pass_descriptors.h"
#include "daemon/parts/part_server.h"
#include "daemon/supervision/live_shims.h"
#include "daemon/supervision/rank_watch.h"

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
  if (streams_.erase(id) > 0 && tell) (void)options_.send(stream_frame(Message::kClosed, id));
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
    if (put < 0 && errno != EAGAIN) return; // gone: reading tells, after its last words
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
  // A slow link must not fill our memory: what is not read waits in the shim, and on its disk.
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
    send_pages(id, stream); // before the hello that says how many there are
  }
  if (!options_.send(stream_frame(Message::kBytes, id, {bytes, static_cast<size_t>(got.count)})))
    close(id, false);
}

void PartServer::send_pages(uint64_t id, Stream& stream) {
  if (stream.pages.empty() || options_.queued_bytes() > kMostQueued) return;
  std::vector<std::string> pages(stream.pages.size(), std::string(progress::kPageBytes, '\0'));
  for (size_t i = 0; i < pages.size(); ++i)
    if (::pread(stream.pages[i].fd(), pages[i].data(), pages[i].size(), 0) !=
        ssize_t(pages[i].size()))
      return;
  // Of pages that have not changed: the head looks for hangs while it has heard of them for a
  // second.
  constexpr Duration kStillInterval = std::chrono::milliseconds(400);
  const MonotonicTime now = MonotonicTime::now();
  if (pages == stream.sent && now - stream.sent_at < kStillInterval) return;
  stream.sent_at = now;
  std::string body;
  for (size_t i = 0; i < pages.size(); ++i) {
    PageRecord record;
    record.rank = stream.pages[i].rank();
    record.monotonic_ns = now.nanoseconds;
    record.has_page = pages[i] != stream.sent[i];
    // Who stands still is looked into, as on the head's own node.
    if (!record.has_page && i < stream.pids.size())
      if (const auto reading = control::read_process(stream.pids[i])) record.process = *reading;
    body.append(reinterpret_cast<const char*>(&record), sizeof record);
    if (record.has_page) body += pages[i];
  }
  stream.sent = std::move(pages);
  (void)options_.send(stream_frame(Message::kPages, id, body));
}

} // namespace nsa::parts
