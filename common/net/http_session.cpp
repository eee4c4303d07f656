// The only server file that uses Beast: it parses requests. Responses are written without Beast, so
// that plain and chunked ones share one bounded queue.
#include "common/net/http_session.h"

#include "common/base/json.h"
#include "common/base/log.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

namespace nsa::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

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

class Session : public HttpSession, public std::enable_shared_from_this<Session> {
public:
  Session(Socket socket, std::shared_ptr<HttpShared> shared, asio::io_context& context, Peer peer)
      : socket_(std::move(socket)), shared_(std::move(shared)), peer_(std::move(peer)),
        deadline_(context) {}

  void start() override { wait_for_request(); }
  bool busy() const override { return busy_; }
  MonotonicTime opened() const override { return opened_; }
  uint32_t caller() const override { return peer_.uid; }

  void close() override {
    if (closed_) return;
    closed_ = true;
    shared_->caller_limits.disconnect(caller());
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
    busy_ = false;
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
    // curl waits a second for this response before it sends a large body.
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
                       self->await_turn();
                     });
  }

  // A caller that exceeds its rate waits, and delays nobody else.
  void await_turn() {
    busy_ = true;
    const Duration delay = shared_->caller_limits.delay_request(caller(), MonotonicTime::now());
    if (delay == Duration{}) return handle();
    deadline_.expires_after(delay);
    deadline_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->closed_) self->handle();
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
    close(); // the client disconnected
  }

  void handle() {
    started_ = MonotonicTime::now();
    auto message = parser_->release();
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    Request request;
    request.method = std::string(message.method_string());
    request.peer = peer_;
    const bool two_hosts = message.count(http::field::host) > 1;
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
    if (two_hosts)
      return answer(error_response(400, "invalid-argument", "the request names two hosts"));
    request.path = std::move(target->path);
    request.query = std::move(target->query);
    Response response;
    try {
      response = shared_->handler(request);
    } catch (const std::exception& e) {
      // A bug in one request must not end the daemon that supervises training.
      log::error("net", "a request handler threw", {{"path", request.path}, {"error", e.what()}});
      response = error_response(500, "internal", e.what());
    }
    if (!response.later) return answer(std::move(response));
    deadline_.cancel(); // the handler limits the time itself
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

  // Detects that the reader disconnects. Data from the reader is discarded, because the connection
  // ends after this response.
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

  // Called when all queued data is sent.
  void finished() {
    if (continuing_) return;
    if (streaming_ && !ended_) {
      deadline_.cancel();
      if (drained_) {
        const auto callback = drained_; // the callback may replace itself
        callback();
      }
      return;
    }
    if (!ended_) return;
    if (!keep_alive_) {
      // Half-close, then read to the end. Closing with unread input would reset the connection and
      // could lose this response (RFC 9112, section 9.6).
      error_code ignored;
      busy_ = false;
      socket_.shutdown(Socket::shutdown_send, ignored);
      arm(std::chrono::seconds(1));
      if (!streaming_) watch_reader(); // a streamed response already runs it
      return;
    }
    ended_ = false;
    wait_for_request();
  }

  void arm(Duration limit) {
    deadline_.expires_after(limit);
    deadline_.async_wait([self = shared_from_this()](error_code error) {
      // If the timer was re-armed while this call was queued, the new deadline counts.
      if (!error && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->close();
    });
  }

  Socket socket_;
  std::shared_ptr<HttpShared> shared_;
  const Peer peer_;
  asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::string method_;
  const MonotonicTime opened_ = MonotonicTime::now();
  MonotonicTime started_ = opened_;

  std::string pending_, writing_; // queued; being sent
  size_t written_ = 0;            // bytes of writing_ that were sent
  char discard_[512];
  std::function<void()> drained_, gone_;
  bool in_write_ = false, keep_alive_ = true, chunked_ = true, streaming_ = false;
  bool busy_ = false, is_lines_ = false, ended_ = false, continuing_ = false, closed_ = false;
};

class SessionStream : public Stream {
public:
  explicit SessionStream(std::weak_ptr<Session> session) : session_(std::move(session)) {}
  // If a producer is destroyed without end(), the reader must not wait for more.
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

} // namespace

std::shared_ptr<HttpSession> make_http_session(Socket socket, std::shared_ptr<HttpShared> shared,
                                               asio::io_context& context, Peer peer) {
  return std::make_shared<Session>(std::move(socket), std::move(shared), context, std::move(peer));
}

} // namespace nsa::net
