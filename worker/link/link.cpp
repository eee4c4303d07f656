#include "worker/link/link.h"

#include "common/base/log.h"

#include <cerrno>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::link {

using wire::MessageType;

Link::Link(UniqueFd socket, Limits limits)
    : socket_(std::move(socket)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), limits_(limits) {
  if (!socket_) return;
  connected_ = true;
  thread_ = std::thread([this] { run(); });
}

Link::~Link() {
  if (!thread_.joinable()) return;
  flush(std::chrono::seconds(2));
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake();
  thread_.join();
}

Requests Link::pending_requests() const {
  return {stop_requested_.load(), checkpoint_before_stop_.load(), checkpoint_.load()};
}

Requests Link::take_requests() {
  Requests r = pending_requests();
  r.checkpoint = checkpoint_.exchange(false);
  return r;
}

void Link::on_collectives_request(std::function<void(const std::string& folder)> handler) {
  const std::lock_guard lock(handler_mutex_);
  on_collectives_request_ = std::move(handler);
}

void Link::enqueue(const wire::RankMessageInfo& message, nlohmann::json body) {
  const bool droppable = message.delivery == wire::Delivery::kMayDrop;
  if (!connected_) {
    // Without a shim, the log gets the message. Step metrics have a separate log line.
    if (!droppable) log::info("link", message.name, {{"body", body.dump()}});
    return;
  }
  auto bytes = wire::encode_message({message.type, 0, std::move(body)});
  if (!bytes) {
    ++lost_;
    log::error("link", "message not sent: " + bytes.error().what);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (droppable && queued_droppable_ >= limits_.droppable_messages) {
      // Drops the oldest, because a reader that catches up needs the current state.
      for (auto it = queue_.begin(); it != queue_.end(); ++it) {
        if (!it->droppable) continue;
        queued_bytes_ -= it->bytes.size();
        --queued_droppable_;
        queue_.erase(it);
        ++dropped_;
        break;
      }
    }
    if (queued_bytes_ + bytes->size() > limits_.pending_bytes) {
      if (droppable)
        ++dropped_;
      else if (lost_++ == 0)
        log::error("link", "the shim does not read; messages that must arrive are being lost");
      return;
    }
    queued_bytes_ += bytes->size();
    queued_droppable_ += droppable ? 1 : 0;
    queue_.push_back({std::move(*bytes), droppable});
  }
  wake();
}

bool Link::flush(Duration limit) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, limit, [this] {
    return !connected_ || (queue_.empty() && !sending_);
  }) && connected_;
}

void Link::wake() {
  const uint64_t one = 1;
  // A full counter means that a wake-up is already pending.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Link::run() {
  ::pthread_setname_np(::pthread_self(), "link");
  bool reading = true;
  while (true) {
    bool want_write;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      if (!sending_ && !queue_.empty()) {
        outgoing_ = std::move(queue_.front().bytes);
        queued_bytes_ -= outgoing_.size();
        queued_droppable_ -= queue_.front().droppable ? 1 : 0;
        queue_.pop_front();
        sent_ = 0;
        sending_ = true;
      }
      want_write = sending_;
    }
    pollfd fds[2] = {{socket_.get(), 0, 0}, {wake_.get(), POLLIN, 0}};
    fds[0].events = static_cast<short>((reading ? POLLIN : 0) | (want_write ? POLLOUT : 0));
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return disconnect("cannot poll the link");
    if (fds[1].revents & POLLIN) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    }
    if (want_write && (fds[0].revents & (POLLOUT | POLLERR | POLLHUP)) && !send_some())
      return disconnect("the shim has closed the link");
    if (fds[0].revents & (POLLIN | POLLERR | POLLHUP)) {
      if (reading && !receive_some()) return disconnect("the shim has closed the link");
      if (!reading && (fds[0].revents & (POLLERR | POLLHUP)))
        return disconnect("the shim has closed the link");
    }
  }
}

bool Link::send_some() {
  while (sent_ < outgoing_.size()) {
    const ssize_t put = ::send(socket_.get(), outgoing_.data() + sent_, outgoing_.size() - sent_,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (put < 0) return false;
    sent_ += static_cast<size_t>(put);
  }
  {
    const std::lock_guard lock(mutex_);
    sending_ = false;
  }
  drained_.notify_all();
  return true;
}

bool Link::receive_some() {
  char chunk[4096];
  const ssize_t got = ::recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
  if (got == 0) return false;
  if (got < 0) return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
  decoder_.feed({chunk, static_cast<size_t>(got)});
  while (true) {
    auto frame = decoder_.next();
    if (!frame) {
      log::error("link", "the shim sends what cannot be read: " + frame.error().what);
      return false;
    }
    if (!*frame) return true;
    handle(**frame);
  }
}

void Link::handle(const wire::Frame& frame) {
  auto message = wire::decode_message(frame);
  if (!message) {
    log::error("link", "request not understood: " + message.error().what);
    return;
  }
  switch (message->type) {
  case MessageType::kStopRequest: {
    auto stop = wire::body_as<wire::StopRequest>(message->body);
    checkpoint_before_stop_ = stop ? stop->checkpoint : true;
    stop_requested_ = true;
    break;
  }
  case MessageType::kCheckpointRequest:
    checkpoint_ = true;
    break;
  case MessageType::kCollectivesRequest: {
    const auto request = wire::body_as<wire::CollectivesRequest>(message->body);
    const std::lock_guard lock(handler_mutex_);
    if (request && on_collectives_request_) on_collectives_request_(request->folder);
    break;
  }
  default: // a newer shim may send requests that this build does not know
    break;
  }
}

// Training never stops because of a closed link (design 4.9). The rank continues and logs it once.
void Link::disconnect(const std::string& why) {
  log::warning("link", why + "; training continues without it");
  {
    const std::lock_guard lock(mutex_);
    connected_ = false;
    queue_.clear();
    queued_bytes_ = queued_droppable_ = 0;
    sending_ = false;
  }
  drained_.notify_all();
}

} // namespace nsa::link
