// HTTP/1.1 server on the event loop: a unix socket whose callers are known by their credentials, or
// TCP on loopback. Keep-alive, size and time limits, streamed answers with bounded queues.
//
// All on the loop's thread; the handler returns at once (long work goes through Response::stream).
// Destroying the server closes its socket and every connection, and removes the socket file.
#pragma once

#include "common/base/result.h"
#include "common/net/event_loop.h"
#include "common/net/http.h"

#include <cstdint>
#include <memory>
#include <string>

namespace nsa::net {

struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 4 << 20;         // larger: 413
  size_t stream_queue_bytes = 1 << 20; // of one follower
  // Of all callers, and of one uid (TCP: of all, since nothing is known of them). For one more the
  // idlest of who has most is closed; where it is busy with all of them, 429 and closed at once.
  size_t connections = 256, connections_of_one = 32;
  double requests_per_second = 100, request_burst = 200; // of one uid; more of them wait
  Duration request_timeout = std::chrono::seconds(10);   // from first byte to the whole request
  Duration idle_timeout = std::chrono::seconds(60);      // between requests of one connection
  Duration write_timeout = std::chrono::seconds(30);     // without one byte taken by the reader
};

// What a finished request was, for metrics and logs. Streams report when their head was sent.
struct HttpRecord {
  std::string route; // as the handler said; "invalid" for what no handler saw
  std::string method;
  int status = 0;
  double seconds = 0; // handler and answer, without waiting for the request
};
using HttpObserver = std::function<void(const HttpRecord&)>;

class HttpServer {
public:
  virtual ~HttpServer() = default;

  // Listens on `path` with this mode. A socket file without a listener is replaced; with a live
  // one: kConflict. The folder must exist. Paths longer than an address holds (107 bytes) work.
  static Result<std::unique_ptr<HttpServer>> listen_unix(EventLoop& loop, const std::string& path,
                                                         unsigned mode, Handler handler,
                                                         HttpLimits limits = {},
                                                         HttpObserver observer = {});
  // `address` must be a loopback address: there is no authentication on TCP. Port 0: any free one.
  static Result<std::unique_ptr<HttpServer>> listen_tcp(EventLoop& loop, const std::string& address,
                                                        uint16_t port, Handler handler,
                                                        HttpLimits limits = {},
                                                        HttpObserver observer = {});

  virtual uint16_t port() const = 0; // 0 for unix sockets
  virtual size_t connections() const = 0;
};

} // namespace nsa::net
