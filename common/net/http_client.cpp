// The only client file that uses Beast: it parses responses from plain reads.
#include "common/net/http_client.h"

#include "common/base/file.h"
#include "common/net/unix_socket.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::net {

namespace http = boost::beast::http;
using boost::system::error_code;
using Parser = http::response_parser<http::string_body>;

namespace {
constexpr size_t kMaxBody = size_t{256} << 20;

std::string encode(const ClientRequest& request) {
  std::string text = request.method + " " + request.target + " HTTP/1.1\r\nHost: nsad\r\n";
  for (const auto& [name, value] : request.header)
    text += name + ": " + value + "\r\n";
  if (!request.body.empty() || request.method == "POST")
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) +
        "\r\n";
  return text + "\r\n" + request.body;
}

// MSG_NOSIGNAL, because SIGPIPE would end the program before it can report the error.
Status send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_errno("cannot write");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

std::map<std::string, std::string> header_of(const Parser& parser) {
  std::map<std::string, std::string> header;
  for (const auto& field : parser.get()) {
    std::string name(field.name_string());
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    header[name] = std::string(field.value());
  }
  return header;
}

ClientResponse take(Parser& parser) {
  ClientResponse response;
  response.header = header_of(parser);
  auto message = parser.release();
  response.status = static_cast<int>(message.result_int());
  response.body = std::move(message.body());
  return response;
}

// Feeds a parser from the socket. The parser needs complete header and body pieces, so the bytes
// that it did not consume are kept for the next call.
class Feed {
public:
  Feed(int fd, Parser& parser) : fd_(fd), parser_(parser) {}

  enum class Outcome { kMore, kDone, kQuiet, kInterrupted };

  // Waits at most `wait` and parses what has arrived.
  Result<Outcome> step(Duration wait, int interrupt_fd) {
    pollfd fds[2] = {{fd_, POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(wait).count() + 1;
    const int ready = ::poll(fds, 2, static_cast<int>(milliseconds));
    if (ready < 0 && errno != EINTR) return fail_errno("cannot wait for nsad");
    if (ready <= 0) return Outcome::kQuiet;
    if (fds[1].revents != 0) return Outcome::kInterrupted;
    char chunk[1 << 16];
    const ssize_t got = ::read(fd_, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) return Outcome::kQuiet;
    const bool reset = got < 0 && errno == ECONNRESET; // the server closed it without reading our
                                                       // request
    if (got < 0 && !reset) return fail_errno("cannot read from nsad");
    error_code error;
    if (got <= 0) {
      if (parser_.got_some()) parser_.put_eof(error);
      if (error || !parser_.is_done())
        return fail(ErrorCode::kUnavailable, "nsad closed the connection before the answer's end",
                    "see `nsactl daemon logs`");
      return Outcome::kDone;
    }
    left_.append(chunk, static_cast<size_t>(got));
    while (!left_.empty() && !parser_.is_done()) {
      const size_t used = parser_.put(boost::asio::buffer(left_), error);
      left_.erase(0, used);
      if (error == http::error::need_more) break;
      if (error)
        return fail(ErrorCode::kCorrupt, "nsad's answer is not HTTP/1.1: " + error.message());
      if (used == 0) break;
    }
    return parser_.is_done() ? Outcome::kDone : Outcome::kMore;
  }

private:
  int fd_;
  Parser& parser_;
  std::string left_;
};
} // namespace

Result<HttpClient> HttpClient::connect_unix(const std::string& path) {
  NSA_TRY_ASSIGN(UniqueFd fd, connect_unix_socket(path));
  return HttpClient(std::move(fd), path);
}

Result<ClientResponse> HttpClient::send(const ClientRequest& request, Duration timeout) {
  LineReader none;
  none.tick_interval = timeout;
  NSA_TRY_ASSIGN(StreamedResponse answer, send_streaming(request, timeout, none));
  return std::move(answer.response);
}

Result<StreamedResponse> HttpClient::send_streaming(const ClientRequest& request, Duration timeout,
                                                    const LineReader& reader) {
  if (auto sent = send_all(socket_.get(), encode(request)); !sent)
    return fail(ErrorCode::kUnavailable, sent.error().what + " to " + path_);
  Parser parser;
  parser.eager(true);
  if (reader.line)
    parser.body_limit(boost::none); // lines are passed on, not stored
  else
    parser.body_limit(kMaxBody);
  std::string line;
  bool stopped = false, head_told = false;
  const auto deliver = [&](std::string_view bytes) {
    while (!stopped) {
      const size_t end = bytes.find('\n');
      line.append(bytes.substr(0, end));
      if (end == std::string_view::npos) return;
      bytes.remove_prefix(end + 1);
      stopped = !reader.line(line);
      line.clear();
    }
  };
  auto on_chunk = [&](uint64_t, boost::core::string_view bytes, error_code& error) -> size_t {
    error = {};
    if (reader.line && parser.get().result() == http::status::ok)
      deliver({bytes.data(), bytes.size()});
    else
      parser.get().body().append(bytes.data(), bytes.size());
    return bytes.size();
  };
  parser.on_chunk_body(on_chunk);

  Feed feed(socket_.get(), parser);
  const MonotonicTime deadline = MonotonicTime::now() + timeout;
  StreamedResponse answer;
  MonotonicTime next_tick = MonotonicTime::now() + reader.tick_interval;
  while (true) {
    const MonotonicTime now = MonotonicTime::now();
    const bool bounded = !reader.line || !parser.is_header_done();
    if (bounded && now > deadline)
      return fail(ErrorCode::kExhausted,
                  "nsad did not answer within " +
                      std::to_string(timeout / std::chrono::seconds(1)) + " s",
                  "see `nsactl daemon logs`");
    Duration wait = next_tick > now ? next_tick - now : Duration::zero();
    if (bounded) wait = std::min(wait, deadline - now);
    auto outcome = feed.step(wait, reader.interrupt_fd);
    if (!outcome) return fail(std::move(outcome).error());
    if (reader.head && !head_told && parser.is_header_done()) {
      head_told = true;
      reader.head(header_of(parser));
    }
    if (MonotonicTime::now() >= next_tick) {
      if (reader.tick && !reader.tick()) stopped = true;
      next_tick = MonotonicTime::now() + reader.tick_interval;
    }
    if (stopped) answer.end = StreamEnd::kStopped;
    if (*outcome == Feed::Outcome::kInterrupted) answer.end = StreamEnd::kInterrupted;
    if (stopped || *outcome == Feed::Outcome::kInterrupted) return answer;
    if (*outcome == Feed::Outcome::kDone) break;
  }
  answer.response = take(parser);
  if (reader.line && answer.response.status == 200) {
    // A short response may have a length instead of chunks.
    deliver(std::exchange(answer.response.body, {}));
    if (!stopped && !line.empty()) reader.line(line);
  }
  return answer;
}

} // namespace nsa::net
