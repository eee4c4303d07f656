#include "worker/mesh/exchange.h"

#include "common/base/log.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

namespace nsa::comm {

namespace {

constexpr uint32_t kMagic = 0x6d61736e; // "nsam" in memory

// All ranks run the same build on the same architecture, so structs are sent as raw memory.
struct Header {
  uint32_t magic = kMagic;
  uint32_t operation = 0;
  uint32_t kind = 0;
  uint32_t index = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32); // no padding, which would be uninitialised

// Sent by a rank that gives up.
struct Note {
  uint32_t magic = kMagic;
  int32_t blamed = -1; // -1: no rank
};

const char* operation_name(uint32_t operation) {
  switch (static_cast<Operation>(operation)) {
  case Operation::kReduceScatter:
    return "reduce-scatter";
  case Operation::kAllGather:
    return "all-gather";
  case Operation::kBroadcast:
    return "broadcast";
  case Operation::kBarrier:
    return "barrier";
  case Operation::kAllToAll:
    return "all-to-all";
  }
  return "unknown operation";
}

std::string describe(const Header& h) {
  return describe(Tag{h.step, static_cast<Kind>(h.kind), h.index}) + " (" +
         operation_name(h.operation) + ", " + std::to_string(h.bytes) + " bytes)";
}

enum class Progress { kBlocked, kDone, kGone };

// State of both directions of one peer.
struct Line {
  Transfer* transfer = nullptr;
  Header out_header{}, expected{}, seen{};
  size_t sent = 0, received = 0; // header included
  bool out_done = true, in_done = true;
  bool mismatched = false;  // the peer is in another collective; its data is not read
  bool notes_ended = false; // the notes socket has nothing more to read

  Progress send_more() {
    const size_t total = sizeof out_header + transfer->out_bytes;
    while (sent < total) {
      iovec pieces[2];
      int count = 0;
      if (sent < sizeof out_header)
        pieces[count++] = {reinterpret_cast<std::byte*>(&out_header) + sent,
                           sizeof out_header - sent};
      const size_t payload_sent = sent > sizeof out_header ? sent - sizeof out_header : 0;
      if (payload_sent < transfer->out_bytes)
        pieces[count++] = {const_cast<std::byte*>(transfer->out) + payload_sent,
                           transfer->out_bytes - payload_sent};
      msghdr message{};
      message.msg_iov = pieces;
      message.msg_iovlen = static_cast<size_t>(count);
      const ssize_t put = ::sendmsg(transfer->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Progress::kBlocked;
      if (put < 0) return Progress::kGone;
      sent += static_cast<size_t>(put);
    }
    out_done = true;
    return Progress::kDone;
  }

  Progress receive_more() {
    const size_t total = sizeof seen + transfer->in_bytes;
    while (received < total) {
      const bool in_header = received < sizeof seen;
      std::byte* at = in_header ? reinterpret_cast<std::byte*>(&seen) + received
                                : transfer->in + (received - sizeof seen);
      const size_t want = in_header ? sizeof seen - received : total - received;
      const ssize_t got = ::recv(transfer->socket, at, want, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Progress::kBlocked;
      if (got <= 0) return Progress::kGone;
      received += static_cast<size_t>(got);
      if (in_header && received == sizeof seen && !(seen == expected)) {
        mismatched = true;
        return Progress::kBlocked;
      }
    }
    in_done = true;
    return Progress::kDone;
  }

  bool finished() const { return out_done && in_done; }
};

// Returns the rank that the peer blamed when it gave up, if any. Two ranks in different collectives
// blame each other, so the peer's note then tells `self` nothing.
std::optional<Rank> blamed_by(const Line& line, Rank self) {
  Note note;
  const ssize_t got = ::recv(line.transfer->notes, &note, sizeof note, MSG_DONTWAIT | MSG_PEEK);
  if (got != ssize_t(sizeof note) || note.magic != kMagic || note.blamed < 0) return std::nullopt;
  if (note.blamed == self && line.mismatched) return std::nullopt;
  return note.blamed;
}

bool hung_up(const Line& line) {
  pollfd p{line.transfer->socket, POLLRDHUP, 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// Names the culprit after `noticed` has disconnected or given up. If one rank dies, its peers exit
// soon after, so a rank that looks late sees several disconnected. A rank that left a note is a
// victim, and its note names the culprit.
PeerFailure gone(const std::vector<Line>& lines, const Line& noticed, Rank self,
                 const std::string& doing) {
  const Line* culprit = nullptr;
  for (const Line& line : lines) {
    const bool ended = hung_up(line); // read before the note, because a rank sends its note before
                                      // it disconnects
    if (const auto blamed = blamed_by(line, self))
      return {"rank " + std::to_string(line.transfer->peer) + " gave up during " + doing +
                  " because rank " + std::to_string(*blamed) + " was lost",
              blamed};
    if (culprit == nullptr && ended) culprit = &line;
  }
  if (culprit == nullptr) culprit = &noticed;
  const std::string rank = "rank " + std::to_string(culprit->transfer->peer);
  std::string what = rank + " went away during " + doing;
  if (culprit->mismatched) what += "; " + rank + " is in " + describe(culprit->seen);
  return {std::move(what), culprit->transfer->peer};
}

PeerFailure timed_out(Rank self, const std::vector<Line>& lines, const std::string& doing) {
  PeerFailure failure;
  failure.what = "rank " + std::to_string(self) + " gave up waiting in " + doing + ":";
  for (const Line& line : lines) {
    if (line.finished()) continue;
    if (!failure.blamed) failure.blamed = line.transfer->peer;
    failure.what += " rank " + std::to_string(line.transfer->peer) +
                    (line.mismatched ? " is in " + describe(line.seen)
                     : !line.in_done ? " has not sent its part"
                                     : " does not read") +
                    ";";
  }
  failure.what.pop_back();
  return failure;
}

} // namespace

Outcome exchange(Rank self, const ExchangeName& name, std::span<Transfer> transfers,
                 MonotonicTime deadline, int wake) {
  Header header;
  header.operation = static_cast<uint32_t>(name.operation);
  header.kind = static_cast<uint32_t>(name.tag.kind);
  header.step = name.tag.step;
  header.index = name.tag.index;
  const std::string doing = describe(header);

  std::vector<Line> lines(transfers.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    Line& line = lines[i];
    line.transfer = &transfers[i];
    line.out_header = line.expected = header;
    line.out_header.bytes = transfers[i].out_bytes;
    line.expected.bytes = transfers[i].in_bytes;
    line.out_done = !transfers[i].sends;
    line.in_done = !transfers[i].receives;
  }

  // For each peer its data socket and its notes socket; then `wake`.
  std::vector<pollfd> fds(2 * lines.size() + 1);
  while (true) {
    bool all_done = true;
    for (size_t i = 0; i < lines.size(); ++i) {
      const Line& line = lines[i];
      // For a mismatched peer only the hang-up is polled. Reading would take data of another
      // collective.
      const short want_in = !line.in_done && !line.mismatched ? POLLIN : 0;
      const short want_out = !line.out_done ? POLLOUT : 0;
      fds[2 * i] = {line.finished() ? -1 : line.transfer->socket,
                    static_cast<short>(want_in | want_out | POLLRDHUP), 0};
      // A note from a mismatched peer adds nothing to what this rank knows. After hang-up of the
      // notes socket, the data socket hangs up, too.
      const bool silent = line.finished() || line.mismatched || line.notes_ended;
      fds[2 * i + 1] = {silent ? -1 : line.transfer->notes, POLLIN, 0};
      all_done = all_done && line.finished();
    }
    if (all_done) return {};
    fds.back() = {wake, POLLIN, 0};
    const double left = to_seconds(deadline - MonotonicTime::now());
    if (left <= 0) return tl::unexpected(timed_out(self, lines, doing));
    if (::poll(fds.data(), fds.size(), static_cast<int>(left * 1000) + 1) < 0 && errno != EINTR)
      return tl::unexpected(
          PeerFailure{std::string("cannot poll peers: ") + std::strerror(errno), std::nullopt});
    if (fds.back().revents & POLLIN)
      return tl::unexpected(PeerFailure{"this rank is leaving", std::nullopt});
    for (size_t i = 0; i < lines.size(); ++i) {
      Line& line = lines[i];
      // A peer that gives up may have completed its part of this exchange before. That part counts
      // first.
      const bool noted = fds[2 * i + 1].revents != 0;
      const int events = fds[2 * i].revents | (noted ? POLLIN | POLLOUT : 0);
      if (events == 0) continue;
      // Receive before send: the data that a peer sent before it disconnected is worth more than
      // the EPIPE.
      if (!line.in_done && !line.mismatched &&
          (events & (POLLIN | POLLHUP | POLLRDHUP | POLLERR))) {
        const Progress p = line.receive_more();
        if (p == Progress::kGone) return tl::unexpected(gone(lines, line, self, doing));
        if (line.mismatched)
          log::warning("comm", "ranks are in different collectives and wait for each other",
                       {{"rank", std::to_string(self)},
                        {"here", doing},
                        {"peer", std::to_string(line.transfer->peer)},
                        {"there", describe(line.seen)}});
      } else if (line.mismatched && (events & (POLLHUP | POLLRDHUP | POLLERR))) {
        return tl::unexpected(gone(lines, line, self, doing));
      }
      if (!line.out_done && (events & (POLLOUT | POLLHUP | POLLERR)) &&
          line.send_more() == Progress::kGone)
        return tl::unexpected(gone(lines, line, self, doing));
      if (noted && !line.finished()) {
        if (blamed_by(line, self)) return tl::unexpected(gone(lines, line, self, doing));
        line.notes_ended = true; // end of file, or a note without a blamed rank: the data socket
                                 // decides
      }
    }
  }
}

void announce_failure(std::span<const int> notes, const PeerFailure& failure) {
  const Note note{kMagic, failure.blamed.value_or(-1)};
  for (const int socket : notes)
    if (socket >= 0) ::send(socket, &note, sizeof note, MSG_DONTWAIT | MSG_NOSIGNAL);
}

} // namespace nsa::comm
