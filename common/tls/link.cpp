#include "common/tls/link.h"

#include "common/tls/handshake.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <deque>

namespace nsa::tls {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kRecordBytes = size_t{16} << 10; // TLS records are at most this long (RFC 8446,
                                                  // 5.1)

std::string text_of(const tcp::endpoint& end) {
  const std::string address = end.address().to_string();
  return (end.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(end.port());
}

Error closed_by_peer(const error_code& error) {
  if (error == asio::error::eof || error == asio::ssl::error::stream_truncated)
    return {ErrorCode::kUnavailable, "the other end has closed the link", {}};
  return {ErrorCode::kUnavailable, "the link broke: " + error.message(), {}};
}

class Connection;

// Connections in the same state, oldest first. One more than `most` closes the oldest.
class Crowd {
public:
  explicit Crowd(size_t most) : most_(most) {}
  void enter(const std::shared_ptr<Connection>& connection);
  void leave(const Connection& connection);

private:
  const size_t most_;
  std::deque<std::weak_ptr<Connection>> list_;
};

// Owns the socket. It lives while one of its operations is pending, which may be longer than its
// Link, because the last frames are still sent.
class Connection : public std::enable_shared_from_this<Connection> {
public:
  Connection(tcp::socket socket, std::shared_ptr<asio::ssl::context> context, LinkLimits limits,
             std::shared_ptr<Crowd> goodbyes = nullptr)
      : context_(std::move(context)), stream_(std::move(socket), *context_),
        timer_(stream_.get_executor()), limits_(limits), goodbyes_(std::move(goodbyes)) {
    // By default Asio lets OpenSSL free its 17 KiB buffers after each record. A busy link would
    // allocate them several times a second, which costs more than the records.
    SSL_clear_mode(stream_.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  }

  void shake_hands(asio::ssl::stream_base::handshake_type side,
                   std::function<void(const Error*)> done) {
    error_code ignored;
    stream_.lowest_layer().set_option(tcp::no_delay(true), ignored);
    if (const auto end = stream_.lowest_layer().remote_endpoint(ignored); !ignored)
      peer_.address = text_of(end);
    close_after(limits_.handshake);
    stream_.async_handshake(side, [self = shared_from_this(),
                                   done = std::move(done)](const error_code& error) {
      self->timer_.cancel();
      if (error) {
        const Error why =
            self->gave_way_
                ? Error{ErrorCode::kUnavailable, "it gave way to newer calls in its handshake", {}}
                : handshake_error(self->stream_.native_handle(), error, self->timed_out_);
        self->shut();
        return done(&why);
      }
      self->peer_.certificate = certificate_of_peer(self->stream_.native_handle());
      done(nullptr);
    });
  }

  SSL* native() { return stream_.native_handle(); }
  Peer& peer() { return peer_; }
  bool closed() const { return closed_; }

  void start(Link::Events events) {
    events_ = std::move(events);
    read();
  }

  Status send(const wire::Frame& frame) {
    if (closed_)
      return fail(ErrorCode::kUnavailable, "the link to " + peer_.address + " is closed");
    if (queued_ >= limits_.queue_bytes)
      return fail(ErrorCode::kExhausted,
                  std::to_string(queued_) + " bytes wait for " + peer_.address);
    NSA_TRY_ASSIGN(std::string bytes, wire::encode_frame(frame));
    queued_ += bytes.size();
    outgoing_.push_back(std::move(bytes));
    if (std::exchange(is_writing_, true)) return {};
    // The call is posted, so that frames that the owner sends in the same callback go together.
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      if (!self->closed_) self->write();
    });
    return {};
  }
  size_t queued_bytes() const { return queued_; }

  // Called when the owner destroys the link.
  void abandon() {
    events_ = {};
    abandoned_ = true;
    if (closed_) return;
    close_after(limits_.flush);
    if (goodbyes_) goodbyes_->enter(shared_from_this());
    if (!is_writing_ && !closed_) say_goodbye();
  }

  void give_way() {
    gave_way_ = true;
    shut();
  }

  void shut() {
    closed_ = true;
    error_code ignored;
    timer_.cancel();
    stream_.lowest_layer().close(ignored);
  }

private:
  void close_after(Duration limit) {
    timer_.expires_after(limit);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (error) return;
      self->timed_out_ = true;
      self->shut();
    });
  }

  void read() {
    stream_.async_read_some(asio::buffer(incoming_),
                            [self = shared_from_this()](const error_code& error, size_t size) {
                              self->take(error, size);
                            });
  }

  void take(const error_code& error, size_t size) {
    if (abandoned_ || closed_) return;
    if (error) return close(closed_by_peer(error));
    decoder_.feed({incoming_.data(), size});
    for (;;) {
      auto frame = decoder_.next();
      if (!frame) return close(std::move(frame).error());
      if (!*frame) break;
      // `deliver` is a copy, because the callback may destroy the link and itself.
      if (const auto deliver = events_.frame) deliver(std::move(**frame));
      if (abandoned_ || closed_) return;
    }
    read();
  }

  // Sends as many frames as fit into one record, because each record costs both ends a system call
  // and a wake-up.
  void write() {
    writing_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    while (!outgoing_.empty() && writing_.size() + outgoing_.front().size() <= kRecordBytes) {
      writing_ += outgoing_.front();
      outgoing_.pop_front();
    }
    asio::async_write(stream_, asio::buffer(writing_),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (self->closed_) return;
                        if (error) return self->close(closed_by_peer(error));
                        self->queued_ -= self->writing_.size();
                        if (!self->outgoing_.empty()) return self->write();
                        self->is_writing_ = false;
                        if (self->abandoned_) self->say_goodbye();
                      });
  }

  void say_goodbye() {
    stream_.async_shutdown([self = shared_from_this()](const error_code&) { self->shut(); });
  }

  void close(const Error& why) {
    shut();
    const auto tell = std::exchange(events_, {}).closed;
    if (tell) tell(why);
  }

  std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<tcp::socket> stream_;
  asio::steady_timer timer_;
  LinkLimits limits_;
  Peer peer_;
  Link::Events events_;
  wire::FrameDecoder decoder_;
  std::array<char, kReadBytes> incoming_{};
  std::deque<std::string> outgoing_;
  std::string writing_;             // being sent
  size_t queued_ = 0;               // bytes in outgoing_ and writing_
  std::shared_ptr<Crowd> goodbyes_; // shared with the listener; null at a node's end
  bool closed_ = false, abandoned_ = false, timed_out_ = false, gave_way_ = false;
  bool is_writing_ = false; // or scheduled
};

void Crowd::enter(const std::shared_ptr<Connection>& connection) {
  std::erase_if(list_, [](const std::weak_ptr<Connection>& each) {
    const auto held = each.lock();
    return !held || held->closed();
  });
  list_.push_back(connection);
  if (list_.size() <= most_) return;
  const auto oldest = list_.front().lock();
  list_.pop_front();
  if (oldest) oldest->give_way();
}

void Crowd::leave(const Connection& connection) {
  std::erase_if(list_, [&](const std::weak_ptr<Connection>& each) {
    return each.lock().get() == &connection;
  });
}

class TlsLink : public Link {
public:
  explicit TlsLink(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~TlsLink() override { connection_->abandon(); }
  const Peer& peer() const override { return connection_->peer(); }
  void start(Events events) override { connection_->start(std::move(events)); }
  Status send(const wire::Frame& frame) override { return connection_->send(frame); }
  size_t queued_bytes() const override { return connection_->queued_bytes(); }

private:
  std::shared_ptr<Connection> connection_;
};

// ---- the head's side

class TlsListener : public Listener {
public:
  TlsListener(asio::io_context& io, std::shared_ptr<asio::ssl::context> context, Events events,
              LinkLimits limits)
      : state_(std::make_shared<State>(io, std::move(context), std::move(events), limits)) {}
  ~TlsListener() override {
    state_->gone = true;
    error_code ignored;
    state_->acceptor.close(ignored);
  }

  Status open(const std::string& address, uint16_t port) {
    error_code error;
    const auto parsed = asio::ip::make_address(address, error);
    if (error)
      return fail(ErrorCode::kInvalidArgument, "'" + address + "' is no address",
                  "write an IPv4 or IPv6 address, such as 0.0.0.0");
    const tcp::endpoint end(parsed, port);
    auto& acceptor = state_->acceptor;
    acceptor.open(end.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(end, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return fail(error == asio::error::address_in_use ? ErrorCode::kConflict : ErrorCode::kSystem,
                  "cannot listen on " + text_of(end) + ": " + error.message());
    accept(state_);
    return {};
  }
  uint16_t port() const override { return state_->acceptor.local_endpoint().port(); }

private:
  struct State {
    State(asio::io_context& io, std::shared_ptr<asio::ssl::context> tls, Events told,
          LinkLimits bounds)
        : acceptor(io), pause(io), context(std::move(tls)), events(std::move(told)), limits(bounds),
          handshakes(std::make_shared<Crowd>(bounds.handshakes)),
          goodbyes(std::make_shared<Crowd>(bounds.goodbyes)) {}
    tcp::acceptor acceptor;
    asio::steady_timer pause;
    std::shared_ptr<asio::ssl::context> context;
    Events events;
    LinkLimits limits;
    std::shared_ptr<Crowd> handshakes, goodbyes;
    bool gone = false;
  };

  static void accept(const std::shared_ptr<State>& state) {
    state->acceptor.async_accept([state](const error_code& error, tcp::socket socket) {
      if (state->gone || error == asio::error::operation_aborted) return;
      if (error) {
        // For example, no descriptor is free. That passes, and a loop without a pause would not
        // help.
        state->pause.expires_after(std::chrono::milliseconds(100));
        state->pause.async_wait([state](const error_code&) {
          if (!state->gone) accept(state);
        });
        return;
      }
      const auto connection = std::make_shared<Connection>(std::move(socket), state->context,
                                                           state->limits, state->goodbyes);
      connection->shake_hands(asio::ssl::stream_base::server,
                              [state, connection](const Error* why) {
                                state->handshakes->leave(*connection);
                                if (state->gone) return connection->shut();
                                if (why)
                                  return state->events.refused(connection->peer().address, *why);
                                state->events.accepted(std::make_unique<TlsLink>(connection));
                              });
      state->handshakes->enter(connection);
      accept(state);
    });
  }

  std::shared_ptr<State> state_;
};

// ---- a node's side

class Call : public net::Handle {
public:
  // `check` verifies the server after the handshake.
  using Check = std::function<Status(SSL*, Peer&)>;

  Call(asio::io_context& io, std::shared_ptr<asio::ssl::context> context, LinkLimits limits,
       Check check, Connected connected)
      : state_(std::make_shared<State>(io, std::move(context), limits, std::move(check),
                                       std::move(connected))) {}
  ~Call() override {
    state_->connected = nullptr;
    state_->stop();
  }

  void dial(const std::string& host, uint16_t port) {
    auto state = state_;
    state->target = host + ":" + std::to_string(port);
    state->timer.expires_after(state->limits.handshake);
    state->timer.async_wait([state](const error_code& error) {
      if (!error)
        state->fail_with({ErrorCode::kUnavailable, state->target + " does not answer", {}});
    });
    state->resolver.async_resolve(
        host, std::to_string(port),
        [state](const error_code& error, const tcp::resolver::results_type& ends) {
          if (!state->connected) return;
          if (error) return state->unreachable(error);
          asio::async_connect(state->socket, ends,
                              [state](const error_code& why, const tcp::endpoint&) {
                                if (!state->connected) return;
                                if (why) return state->unreachable(why);
                                shake_hands(state);
                              });
        });
  }

private:
  struct State {
    State(asio::io_context& io, std::shared_ptr<asio::ssl::context> tls, LinkLimits bounds,
          Check checks, Connected told)
        : resolver(io), socket(io), timer(io), context(std::move(tls)), limits(bounds),
          check(std::move(checks)), connected(std::move(told)) {}
    void stop() {
      error_code ignored;
      resolver.cancel();
      timer.cancel();
      socket.close(ignored);
      if (connection) connection->shut();
    }
    void unreachable(const error_code& why) {
      fail_with({ErrorCode::kUnavailable, "cannot reach " + target + ": " + why.message(), {}});
    }
    void fail_with(Error why) {
      stop();
      if (const auto tell = std::exchange(connected, nullptr)) tell(fail(std::move(why)));
    }
    tcp::resolver resolver;
    tcp::socket socket;
    asio::steady_timer timer;
    std::shared_ptr<asio::ssl::context> context;
    LinkLimits limits;
    Check check;
    Connected connected;
    std::shared_ptr<Connection> connection;
    std::string target;
  };

  static void shake_hands(const std::shared_ptr<State>& state) {
    state->connection =
        std::make_shared<Connection>(std::move(state->socket), state->context, state->limits);
    state->connection->shake_hands(asio::ssl::stream_base::client, [state](const Error* why) {
      if (!state->connected) return;
      if (why) return state->fail_with(*why);
      if (auto checked = state->check(state->connection->native(), state->connection->peer());
          !checked)
        return state->fail_with(std::move(checked).error());
      state->timer.cancel();
      const auto tell = std::exchange(state->connected, nullptr);
      tell(std::make_unique<TlsLink>(std::exchange(state->connection, nullptr)));
    });
  }

  std::shared_ptr<State> state_;
};

std::unique_ptr<net::Handle> call(net::EventLoop& loop, const std::string& host, uint16_t port,
                                  Result<std::shared_ptr<asio::ssl::context>> context,
                                  Call::Check check, Connected connected, LinkLimits limits) {
  if (!context) {
    return loop.after(Duration(0), [connected = std::move(connected),
                                    why = std::move(context).error()] { connected(fail(why)); });
  }
  auto made = std::make_unique<Call>(loop.native(), std::move(*context), limits, std::move(check),
                                     std::move(connected));
  made->dial(host, port);
  return made;
}
} // namespace

Result<std::unique_ptr<Listener>> Listener::listen(net::EventLoop& loop, const std::string& address,
                                                   uint16_t port, const Identity& head,
                                                   Events events, LinkLimits limits) {
  NSA_TRY_ASSIGN(auto context, server_context(head));
  auto listener =
      std::make_unique<TlsListener>(loop.native(), std::move(context), std::move(events), limits);
  NSA_TRY(listener->open(address, port));
  return listener;
}

std::unique_ptr<net::Handle> connect(net::EventLoop& loop, const std::string& host, uint16_t port,
                                     const Identity& node, Connected connected, LinkLimits limits) {
  return call(
      loop, host, port, client_context(node), [](SSL*, Peer&) { return Status(); },
      std::move(connected), limits);
}

std::unique_ptr<net::Handle> join(net::EventLoop& loop, const std::string& host, uint16_t port,
                                  const std::string& fingerprint, Connected connected,
                                  LinkLimits limits) {
  return call(
      loop, host, port, joining_context(),
      [fingerprint](SSL* ssl, Peer& peer) -> Status {
        NSA_TRY_ASSIGN(Certificate authority, pinned_authority(ssl, fingerprint));
        peer.authority = std::move(authority);
        return {};
      },
      std::move(connected), limits);
}

} // namespace nsa::tls
