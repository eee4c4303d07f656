// HTTP/1.1 requests and responses as plain values, and the sink that takes a long answer. This
// header has no socket and no parser: see http_server.h and http_client.h.
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

// Who is at the other end. Of a unix socket: SO_PEERCRED, as of connect(2).
struct Peer {
  bool is_local_user = false; // false: TCP, the fields below say nothing
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
  std::vector<uint32_t> groups; // supplementary ones
};

struct Request {
  std::string method;                        // "GET", upper case
  std::string path;                          // as sent, without the query: "/v1/runs/k3fm2"
  std::map<std::string, std::string> query;  // decoded; of a repeated key the last
  std::map<std::string, std::string> header; // names in lower case
  std::string body;
  Peer peer;
};

// A long answer in chunks. Lives on the loop's thread; keep the shared_ptr while there is more to
// say. What the other side does not read is queued up to a bound (HttpLimits::stream_queue_bytes);
// past it the stream is cut off: the queue is dropped, one last line says so, and the connection
// closes. So a slow reader costs a bounded amount of memory and never delays the daemon.
class Stream {
public:
  virtual ~Stream() = default;
  // Queues bytes; false when the stream is over (closed, cut off or ended): stop and let go.
  virtual bool write(std::string_view bytes) = 0;
  virtual void end() = 0;            // what is queued still goes out
  virtual bool is_open() const = 0;  //
  virtual size_t queued() const = 0; // bytes not yet taken by the kernel
  // Called each time the queue has become empty: for producers that read files piece by piece.
  virtual void when_drained(std::function<void()> callback) = 0;
  // Called once when the reader went away or was cut off; not after end().
  virtual void when_closed(std::function<void()> callback) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> header;
  // Set: the answer is streamed (chunked, body above ignored). Called once, after the head is on
  // its way.
  std::function<void(std::shared_ptr<Stream>)> stream;
  // Set: the answer comes later, whole; everything else here but `route` is ignored. Called once
  // with what takes the answer, which is called once on the loop's thread; a client that has left
  // by then is no error. Meanwhile the connection reads no other request.
  std::function<void(std::function<void(Response)>)> later;
  std::string route; // "/v1/runs/{id}": the name under which metrics count it; bounded in number
};

using Handler = std::function<Response(const Request&)>;

// Splits "/v1/runs/k3fm2/logs?rank=1&follow" and decodes the query. The path stays encoded, since
// an encoded slash does not part it: decode_component() reads its parts. nullopt when the target is
// malformed (bad percent escape, NUL, not starting with '/').
struct Target {
  std::string path;
  std::map<std::string, std::string> query;
};
std::optional<Target> parse_target(std::string_view target);
std::optional<std::string> decode_component(std::string_view text); // nullopt: malformed, or a NUL
std::string
encode_component(std::string_view text); // percent-encodes all but unreserved (RFC 3986)

std::string_view status_text(int status);

} // namespace nsa::net
