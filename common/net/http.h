// HTTP/1.1 requests and responses as plain values, and the sink of a streamed response. This header
// uses no socket and no parser; see http_server.h and http_client.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::net {

// The process at the other end of a unix socket: SO_PEERCRED at the time of connect(2).
struct Peer {
  bool is_local_user = false; // false: TCP, and the fields below are not set
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
  std::vector<uint32_t> groups; // supplementary groups
};

struct Request {
  std::string method;                        // for example "GET", upper case
  std::string path;                          // as sent, without the query: "/v1/runs/k3fm2"
  std::map<std::string, std::string> query;  // decoded; the last value of a repeated key
  std::map<std::string, std::string> header; // names in lower case
  std::string body;
  Peer peer;
};

// A long response in chunks. Loop's thread only; keep the shared_ptr until the response is
// complete. Data that the reader does not take is queued up to a bound
// (HttpLimits::stream_queue_bytes). Above the bound the server drops the queue, sends one last line
// that says so, and closes the connection. So a slow reader costs bounded memory and never delays
// the daemon.
class Stream {
public:
  virtual ~Stream() = default;
  // Queues bytes. Returns false if the stream is over (closed, cut off or ended); the caller must
  // then stop.
  virtual bool write(std::string_view bytes) = 0;
  virtual void end() = 0; // queued bytes are still sent
  virtual bool is_open() const = 0;
  virtual size_t queued() const = 0; // bytes that the kernel has not taken yet
  // Called whenever the queue becomes empty, for producers that read files piece by piece.
  virtual void when_drained(std::function<void()> callback) = 0;
  // Called once if the reader disconnects or is cut off; not after end().
  virtual void when_closed(std::function<void()> callback) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> header;
  // If set, the response is streamed (chunked, and `body` is ignored). Called once, after the
  // header is queued.
  std::function<void(std::shared_ptr<Stream>)> stream;
  // If set, the complete response comes later, and the other members except `route` are ignored.
  // Called once with a function that takes the response. Call that function once on the loop's
  // thread; the client may have disconnected by then. Meanwhile the connection reads no other
  // request.
  std::function<void(std::function<void(Response)>)> later;
  std::string route; // for example "/v1/runs/{id}": label in metrics, from a bounded set
};

using Handler = std::function<Response(const Request&)>;

// Splits "/v1/runs/k3fm2/logs?rank=1&follow" and decodes the query. The path stays encoded, because
// an encoded slash is no separator; decode_component() decodes its parts. Returns nullopt if the
// target is malformed (bad percent escape, NUL, no '/' at the start).
struct Target {
  std::string path;
  std::map<std::string, std::string> query;
};
std::optional<Target> parse_target(std::string_view target);
std::optional<std::string> decode_component(std::string_view text); // nullopt if malformed or with
                                                                    // a NUL
std::string
encode_component(std::string_view text); // percent-encodes all but unreserved characters (RFC 3986)

std::string_view status_text(int status);

} // namespace nsa::net
