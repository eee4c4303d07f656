// The one file that knows Beast on the server's side: it parses requests. Answers are written by
// hand, because plain and chunked ones then share a single bounded queue.
#include "common/net/http_server.h"

#include "common/base/log.h"
#include "common/net/unix_socket.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_set>

namespace nsa::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;

namespace {

class Session;

// What the sessions share with their server; outlives it while a handler is still on its way.
struct Shared {
  Handler handler;
  HttpLimits limits;
  HttpObserver observer;
  bool local = false; // unix socket: callers have credentials
  std::unordered_set<std::shared_ptr<Session>> sessions;
};

std::string error_body(std::string_view code, std::string_view what) {
  return nlohmann::json{{"code", code}, {"what", what}, {"next", ""}}.dump() + "\n";
}

Response error_response(int status, std::string_view code, std::string_view what) {
  Response response;
  response.status = status;
  response.body = error_body(code, what);
  response.route = "invalid";
  return response;
}

// One connection. Owned by Shared::sessions until closed; callbacks in flight hold it too.
class Session : public std::enable_shared_from_this<Session> {
public:
  Session(Socket socket, std::shared_ptr<Shared> shared, asio::io_context& context)
      : socket_(std::move(socket)), shared_(std::move(shared)), deadline_(context) {}

  void start() {
    if (shared_->local) {
      ucred credentials{};
      socklen_t size = sizeof credentials;
      if (::getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
        return close();
      peer_ = {true, credentials.uid, credentials.gid, credentials.pid};
    }
    wait_for_request();
  }

  void refuse() { // one connection too many
    keep_alive_ = false;
    answer(error_response(503, "exhausted", "too many connections"));
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    error_code ignored;
    deadline_.cancel();
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
    const auto self = shared_from_this();
    shared_->sessions.erase(self);
    drained_ = nullptr;
    if (auto callback = std::exchange(gone_, nullptr)) callback();
  }

  // ---- the streamed answer --------------------------------------------------------------------
  bool stream_open() const { return !closed_ && streaming_ && !ended_; }
  size_t queued() const { return writing_.size() - written_ + pending_.size(); }

  bool stream_write(std::string_view bytes) {
    if (!stream_open()) return false;
    if (bytes.empty()) return true;
    if (pending_.size() + bytes.size() > shared_->limits.stream_queue_bytes) {
      cut_off();
      return false;
    }
    append_chunk(bytes);
    write_some();
    return true;
  }

  void stream_end() {
    if (!stream_open()) return;
    if (chunked_) pending_ += "0\r\n\r\n";
    ended_ = true;
    gone_ = nullptr;
    drained_ = nullptr;
    write_some();
  }

  void when_drained(std::function<void()> callback) { drained_ = std::move(callback); }
  void when_closed(std::function<void()> callback) { gone_ = std::move(callback); }

private:
  // ---- reading ----------------------------------------------------------------------------------
  void wait_for_request() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_->limits.header_bytes));
    parser_->body_limit(shared_->limits.body_bytes);
    if (buffer_.size() > 0) return read_head(); // pipelined
    arm(shared_->limits.idle_timeout);
    socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
      if (self->closed_) return;
      if (error) return self->close();
      self->read_head();
    });
  }

  void read_head() {
    arm(shared_->limits.request_timeout);
    http::async_read_header(socket_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (self->closed_) return;
                              if (error) return self->reject(error);
                              self->read_body();
                            });
  }

  void read_body() {
    // curl waits a second for this line before it sends a large body.
    if (!parser_->is_done() && parser_->get()[http::field::expect] == "100-continue") {
      pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
      continuing_ = true;
      write_some();
    }
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       if (self->closed_) return;
                       self->continuing_ = false;
                       if (error) return self->reject(error);
                       self->handle();
                     });
  }

  void reject(error_code error) {
    keep_alive_ = false;
    if (error == http::error::body_limit)
      return answer(error_response(413, "exhausted",
                                   "the request's body is larger than " +
                                       std::to_string(shared_->limits.body_bytes) + " bytes"));
    if (error == http::error::header_limit)
      return answer(error_response(431, "exhausted",
                                   "the request's header is larger than " +
                                       std::to_string(shared_->limits.header_bytes) + " bytes"));
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return answer(error_response(400, "invalid-argument", "not HTTP/1.1: " + error.message()));
    close(); // gone, as clients do
  }

  void handle() {
    started_ = MonotonicTime::now();
    auto message = parser_->release();
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    Request request;
    request.method = std::string(message.method_string());
    request.peer = peer_;
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      request.header[name] = std::string(field.value());
    }
    request.body = std::move(message.body());
    method_ = request.method;
    auto target = parse_target({message.target().data(), message.target().size()});
    if (!target)
      return answer(error_response(400, "invalid-argument", "the request's target is malformed"));
    request.path = std::move(target->path);
    request.query = std::move(target->query);
    Response response;
    try {
      response = shared_->handler(request);
    } catch (const std::exception& e) {
      // One request's bug must not end the daemon that supervises training.
      log::error("net", "a request handler threw", {{"path", request.path}, {"error", e.what()}});
      response = error_response(500, "internal", e.what());
    }
    if (!response.later) return answer(std::move(response));
    deadline_.cancel(); // whoever answers bounds the time
    response.later([weak = weak_from_this(), route = response.route](Response late) {
      const auto self = weak.lock();
      if (!self) return;
      late.route = route;
      self->answer(std::move(late));
    });
  }

  // ---- answering --------------------------------------------------------------------------------
  void answer(Response response) {
    if (closed_) return;
    const bool streams = static_cast<bool>(response.stream);
    if (streams) keep_alive_ = false;
    std::string head = "HTTP/1.1 " + std::to_string(response.status) + " " +
                       std::string(status_text(response.status)) + "\r\n" +
                       "Content-Type: " + response.content_type + "\r\n";
    for (const auto& [name, value] : response.header)
      head += name + ": " + value + "\r\n";
    if (!streams)
      head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
    else if (chunked_)
      head += "Transfer-Encoding: chunked\r\n";
    if (!keep_alive_) head += "Connection: close\r\n";
    head += "\r\n";
    pending_ += head;
    if (shared_->observer)
      shared_->observer(
          {response.route, method_, response.status, to_seconds(MonotonicTime::now() - started_)});
    if (!streams) {
      if (method_ != "HEAD") pending_ += response.body;
      ended_ = true;
      return write_some();
    }
    streaming_ = true;
    is_lines_ = response.content_type == "application/x-ndjson";
    watch_reader();
    write_some();
    response.stream(make_stream());
  }

  std::shared_ptr<Stream> make_stream();

  // A reader that leaves is seen here; what it sends is read away, since the connection ends after
  // this answer.
  void watch_reader() {
    socket_.async_read_some(asio::buffer(discard_),
                            [self = shared_from_this()](error_code error, size_t) {
                              if (self->closed_) return;
                              if (error) return self->close();
                              self->watch_reader();
                            });
  }

  void append_chunk(std::string_view bytes) {
    if (!chunked_) {
      pending_ += bytes;
      return;
    }
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    pending_ += size;
    pending_ += bytes;
    pending_ += "\r\n";
  }

  void cut_off() {
    const size_t dropped = pending_.size();
    pending_.clear();
    if (is_lines_)
      append_chunk(nlohmann::json{{"type", "cut-off"},
                                  {"what", "the reader was too slow: " + std::to_string(dropped) +
                                               " queued bytes were dropped"}}
                       .dump() +
                   "\n");
    if (chunked_) pending_ += "0\r\n\r\n";
    ended_ = true;
    drained_ = nullptr;
    if (auto callback = std::exchange(gone_, nullptr)) callback();
    write_some();
  }

  void write_some() {
    if (closed_ || in_write_) return;
    if (written_ == writing_.size()) {
      writing_ = std::exchange(pending_, {});
      written_ = 0;
      if (writing_.empty()) return finished();
    }
    in_write_ = true;
    if (!continuing_) arm(shared_->limits.write_timeout);
    socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                             [self = shared_from_this()](error_code error, size_t size) {
                               self->in_write_ = false;
                               if (self->closed_) return;
                               if (error) return self->close();
                               self->written_ += size;
                               self->write_some();
                             });
  }

  // All that was queued is out.
  void finished() {
    if (continuing_) return;
    if (streaming_ && !ended_) {
      deadline_.cancel();
      if (drained_) {
        const auto callback = drained_; // it may replace itself
        callback();
      }
      return;
    }
    if (!ended_) return;
    if (!keep_alive_) {
      // Half-close, then read to the end: closing with unread input would reset the connection and
      // could cost the client this answer (RFC 9112, section 9.6).
      error_code ignored;
      socket_.shutdown(Socket::shutdown_send, ignored);
      arm(std::chrono::seconds(1));
      if (!streaming_) watch_reader(); // a streamed answer has it running
      return;
    }
    ended_ = false;
    wait_for_request();
  }

  void arm(Duration limit) {
    deadline_.expires_after(limit);
    deadline_.async_wait([self = shared_from_this()](error_code error) {
      // Re-armed while this call was already queued: the new deadline counts.
      if (!error && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->close();
    });
  }

  Socket socket_;
  std::shared_ptr<Shared> shared_;
  asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  Peer peer_;
  std::string method_;
  MonotonicTime started_ = MonotonicTime::now();

  std::string pending_, writing_; // queued; on its way
  size_t written_ = 0;            // of writing_
  char discard_[512];
  std::function<void()> drained_, gone_;
  bool in_write_ = false, keep_alive_ = true, chunked_ = true, streaming_ = false;
  bool is_lines_ = false, ended_ = false, continuing_ = false, closed_ = false;
};

class SessionStream : public Stream {
public:
  explicit SessionStream(std::weak_ptr<Session> session) : session_(std::move(session)) {}
  // A producer that lets go without end() leaves the reader waiting for nothing.
  ~SessionStream() override { SessionStream::end(); }

  bool write(std::string_view bytes) override {
    const auto session = session_.lock();
    return session && session->stream_write(bytes);
  }
  void end() override {
    if (const auto session = session_.lock()) session->stream_end();
  }
  bool is_open() const override {
    const auto session = session_.lock();
    return session && session->stream_open();
  }
  size_t queued() const override {
    const auto session = session_.lock();
    return session ? session->queued() : 0;
  }
  void when_drained(std::function<void()> callback) override {
    if (const auto session = session_.lock()) session->when_drained(std::move(callback));
  }
  void when_closed(std::function<void()> callback) override {
    if (const auto session = session_.lock()) session->when_closed(std::move(callback));
  }

private:
  std::weak_ptr<Session> session_;
};

std::shared_ptr<Stream> Session::make_stream() {
  return std::make_shared<SessionStream>(weak_from_this());
}

class Server : public HttpServer {
public:
  Server(asio::io_context& context, UniqueFd listener, int family, std::string path, uint16_t port,
         Handler handler, HttpLimits limits, HttpObserver observer)
      : state_(std::make_shared<State>(context, Protocol(family, 0), listener.release())),
        path_(std::move(path)), port_(port) {
    state_->shared = std::make_shared<Shared>();
    state_->shared->handler = std::move(handler);
    state_->shared->limits = limits;
    state_->shared->observer = std::move(observer);
    state_->shared->local = family == AF_UNIX;
    struct stat info{};
    if (!path_.empty() && ::stat(path_.c_str(), &info) == 0) inode_ = info.st_ino;
    accept(state_);
  }

  ~Server() override {
    // A successor may have put its own socket there.
    struct stat info{};
    if (!path_.empty() && ::stat(path_.c_str(), &info) == 0 && info.st_ino == inode_)
      ::unlink(path_.c_str());
    error_code ignored;
    state_->closed = true;
    state_->acceptor.close(ignored);
    const auto sessions = state_->shared->sessions; // close() erases from the set
    for (const auto& session : sessions)
      session->close();
  }

  uint16_t port() const override { return port_; }
  size_t connections() const override { return state_->shared->sessions.size(); }

private:
  struct State {
    State(asio::io_context& context_, Protocol protocol, int fd)
        : context(context_), acceptor(context_, protocol, fd), pause(context_) {}
    asio::io_context& context;
    asio::basic_socket_acceptor<Protocol> acceptor;
    asio::steady_timer pause;
    std::shared_ptr<Shared> shared;
    bool closed = false;
  };

  static void accept(const std::shared_ptr<State>& state) {
    state->acceptor.async_accept([state](error_code error, Socket socket) {
      if (state->closed) return;
      if (error) {
        // Out of descriptors: the waiting connection stays, so do not spin on it.
        log::warning("net", "cannot accept a connection", {{"error", error.message()}});
        state->pause.expires_after(std::chrono::milliseconds(100));
        state->pause.async_wait([state](error_code) {
          if (!state->closed) accept(state);
        });
        return;
      }
      const auto session =
          std::make_shared<Session>(std::move(socket), state->shared, state->context);
      const bool full = state->shared->sessions.size() >= state->shared->limits.connections;
      state->shared->sessions.insert(session);
      full ? session->refuse() : session->start();
      accept(state);
    });
  }

  std::shared_ptr<State> state_;
  std::string path_;
  uint16_t port_;
  ino_t inode_ = 0;
};

} // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen_unix(EventLoop& loop,
                                                            const std::string& path, unsigned mode,
                                                            Handler handler, HttpLimits limits,
                                                            HttpObserver observer) {
  NSA_TRY_ASSIGN(UniqueFd fd, listen_unix_socket(path, mode));
  return std::make_unique<Server>(loop.native(), std::move(fd), AF_UNIX, path, 0,
                                  std::move(handler), limits, std::move(observer));
}

Result<std::unique_ptr<HttpServer>>
HttpServer::listen_tcp(EventLoop& loop, const std::string& address, uint16_t port, Handler handler,
                       HttpLimits limits, HttpObserver observer) {
  error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error)
    return fail(ErrorCode::kInvalidArgument, "not an IP address: " + address, "write 127.0.0.1");
  if (!parsed.is_loopback())
    return fail(ErrorCode::kUnsupported,
                address + " is not a loopback address, and TCP has no authentication here",
                "listen on 127.0.0.1 and put an authenticating proxy in front");
  const int family = parsed.is_v4() ? AF_INET : AF_INET6;
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot create a socket");
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const asio::ip::tcp::endpoint endpoint(parsed, port);
  const std::string where = address + ":" + std::to_string(port);
  if (::bind(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0)
    return fail_errno("cannot listen on " + where, "choose another port, or 0 for any free one");
  if (::listen(fd.get(), 128) != 0) return fail_errno("cannot listen on " + where);
  asio::ip::tcp::endpoint bound;
  socklen_t size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(fd.get(), bound.data(), &size) != 0)
    return fail_errno("cannot read the port of " + where);
  bound.resize(size);
  return std::make_unique<Server>(loop.native(), std::move(fd), family, "", bound.port(),
                                  std::move(handler), limits, std::move(observer));
}

} // namespace nsa::net
