// HTTP/1.1 server on the event loop. It listens on a unix socket, which gives callers' credentials,
// or on loopback TCP. It has keep-alive, size and time limits, and streamed responses with bounded
// queues.
//
// Loop's thread only. The handler must return at once; long work uses Response::stream. The
// destructor closes the socket and every connection, and removes the socket file.
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
  size_t body_bytes = 4 << 20;         // a larger body gets 413
  size_t stream_queue_bytes = 1 << 20; // for each streamed response
  // Limits in total, and for one uid (all of TCP counts as one). For another connection, the server
  // closes the longest idle one of the caller with most. If that caller is itself the one that
  // connects and all its connections are busy, it gets 429.
  size_t connections = 256, connections_of_one = 32;
  double requests_per_second = 100, request_burst = 200; // for each uid; further requests wait
  Duration request_timeout = std::chrono::seconds(10);   // from the first byte to the complete
                                                         // request
  Duration idle_timeout = std::chrono::seconds(60);      // between requests of a connection
  Duration write_timeout = std::chrono::seconds(30);     // while the reader makes no progress
};

// A finished request, for metrics and logs. A stream reports when its header is sent.
struct HttpRecord {
  std::string route; // set by the handler; "invalid" if no handler saw the request
  std::string method;
  int status = 0;
  double seconds = 0; // handler and response, without the wait for the request
};
using HttpObserver = std::function<void(const HttpRecord&)>;

class HttpServer {
public:
  virtual ~HttpServer() = default;

  // Listens on `path` with this mode. Replaces a socket file without a listener. Error: kConflict
  // if somebody listens. The folder must exist. Paths may be longer than an address (107 bytes).
  static Result<std::unique_ptr<HttpServer>> listen_unix(EventLoop& loop, const std::string& path,
                                                         unsigned mode, Handler handler,
                                                         HttpLimits limits = {},
                                                         HttpObserver observer = {});
  // `address` must be a loopback address, because TCP has no authentication here. Port 0 selects a
  // free port.
  static Result<std::unique_ptr<HttpServer>> listen_tcp(EventLoop& loop, const std::string& address,
                                                        uint16_t port, Handler handler,
                                                        HttpLimits limits = {},
                                                        HttpObserver observer = {});

  virtual uint16_t port() const = 0; // 0 for unix sockets
  virtual size_t connections() const = 0;
};

} // namespace nsa::net
