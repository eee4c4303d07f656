// One connection of the HTTP server, and the state that all connections share. Internal to this
// library, because it exposes Asio's sockets.
//
// Loop's thread only. HttpShared::sessions owns a session until it is closed; pending callbacks own
// it, too.
#pragma once

#include "common/net/caller_limits.h"
#include "common/net/http_server.h"

#include <boost/asio/generic/stream_protocol.hpp>
#include <memory>
#include <unordered_set>

namespace nsa::net {

using Protocol = boost::asio::generic::stream_protocol;
using Socket = Protocol::socket;

class HttpSession {
public:
  virtual ~HttpSession() = default;
  virtual void start() = 0;
  virtual void close() = 0;
  // Returns whether a complete request is being handled or answered.
  virtual bool busy() const = 0;
  virtual MonotonicTime opened() const = 0;
  virtual uint32_t caller() const = 0; // the uid whose limits apply
};

// Outlives the server while a handler's response is pending.
struct HttpShared {
  explicit HttpShared(const HttpLimits& limits_)
      : limits(limits_), caller_limits({limits_.connections, limits_.connections_of_one,
                                        limits_.requests_per_second, limits_.request_burst}) {}
  Handler handler;
  HttpLimits limits;
  HttpObserver observer;
  CallerLimits caller_limits;
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
};

std::shared_ptr<HttpSession> make_http_session(Socket socket, std::shared_ptr<HttpShared> shared,
                                               boost::asio::io_context& context, Peer peer);

} // namespace nsa::net
