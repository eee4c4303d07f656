// Blocking HTTP/1.1 client over a unix socket: one request at a time, whole answers or lines as
// they come. No event loop, so that a command line starts in milliseconds. One thread per client;
// destroying it closes the connection.
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
  std::function<void(const std::map<std::string, std::string>& header)> head; // once
  std::function<bool(std::string_view line)> line;                            // false: stop reading
  std::function<bool()> tick; // about every tick_interval, for redrawing; false: stop reading
  Duration tick_interval = std::chrono::milliseconds(500);
  int interrupt_fd = -1; // readable: stop (a signalfd); not read from here
};
enum class StreamEnd {
  kEnded,       // the server ended the answer
  kStopped,     // `line` or `tick` returned false
  kInterrupted, // interrupt_fd became readable
};
struct StreamedResponse {
  ClientResponse response; // with the body only when the status is not 200
  StreamEnd end = StreamEnd::kEnded;
};

class HttpClient {
public:
  // kUnavailable when nothing listens there (no file, or nobody behind it).
  static Result<HttpClient> connect_unix(const std::string& path);

  // kUnavailable when the connection breaks, kExhausted when `timeout` passes.
  Result<ClientResponse> send(const ClientRequest& request, Duration timeout);
  // Lines (without the newline) of a 200 answer. `timeout` bounds only the wait for the head.
  Result<StreamedResponse> send_streaming(const ClientRequest& request, Duration timeout,
                                          const LineReader& reader);

private:
  explicit HttpClient(UniqueFd socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}
  UniqueFd socket_;
  std::string path_;
};

} // namespace nsa::net
