// Blocking HTTP/1.1 client over a unix socket: one request at a time, with complete responses or
// lines as they arrive. It needs no event loop, so that commands start in milliseconds. Use each
// client from one thread; its destructor closes the connection.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::net {

struct ClientRequest {
  std::string method = "GET";
  std::string target; // path and query, encoded
  std::vector<std::pair<std::string, std::string>> header;
  std::string body;
};

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> header; // names in lower case
  std::string body;
};

struct LineReader {
  std::function<void(const std::map<std::string, std::string>& header)> head; // called once
  std::function<bool(std::string_view line)> line;                            // false: stop reading
  std::function<bool()> tick; // called about every tick_interval, to redraw; false: stop reading
  Duration tick_interval = std::chrono::milliseconds(500);
  int interrupt_fd = -1; // stops when readable (a signalfd); the client does not read it
};
enum class StreamEnd {
  kEnded,       // the server completed the response
  kStopped,     // `line` or `tick` returned false
  kInterrupted, // interrupt_fd became readable
};
struct StreamedResponse {
  ClientResponse response; // has a body only if the status is not 200
  StreamEnd end = StreamEnd::kEnded;
};

class HttpClient {
public:
  // Error: kUnavailable if nobody listens there (no file, or no process).
  static Result<HttpClient> connect_unix(const std::string& path);

  // Errors: kUnavailable if the connection breaks, kExhausted after `timeout`.
  Result<ClientResponse> send(const ClientRequest& request, Duration timeout);
  // Passes on the lines (without newline) of a 200 response. `timeout` limits only the wait for the
  // header.
  Result<StreamedResponse> send_streaming(const ClientRequest& request, Duration timeout,
                                          const LineReader& reader);

private:
  explicit HttpClient(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}
  UniqueFd socket_;
  std::string path_;
};

} // namespace nsa::net
