// nsactl's end of the HTTP API. It finds nsad, starts it on demand, sends requests and follows
// streams. It blocks; use one call at a time. Every request carries the API version. If the daemon
// does not support it, the error says what to do.
#pragma once

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/result.h"
#include "common/net/http_client.h"
#include "common/wire/api_types.h"

#include <functional>
#include <string>
#include <string_view>

namespace nsa::client {

struct DaemonAddress {
  std::string socket;                                  // empty selects by net::user_paths()
  std::string program_dir;                             // folder of nsad
  bool may_start = true;                               // whether to start nsad if none listens
  std::function<void(const std::string& text)> notice; // gets what nsad says besides an answer
  std::string system_socket; // the system daemon's socket, which --system selects
  bool escape = false;       // make texts safe for a terminal (see printable())
};

// A refusal with everything that the daemon said, including all problems of a run file. If a name
// fits several runs, the error lists them.
struct Refusal {
  Error error;
  std::vector<wire::ProblemView> problems;
};

struct FollowOptions {
  std::function<bool(const nlohmann::json& line)> line; // returns false to stop
  std::function<bool()> tick; // called about twice a second; returns false to stop
  int interrupt_fd = -1;      // becomes readable to stop
};

class Daemon {
public:
  // Error: kUnavailable if there is no daemon and none may or can be started.
  static Result<Daemon> connect(const DaemonAddress& address);

  Result<nlohmann::json> get(const std::string& target, Duration timeout = kTimeout);
  // Returns the unparsed text, for answers that are too long for a JSON document.
  Result<std::string> get_text(const std::string& target, Duration timeout = kTimeout);
  Result<nlohmann::json> post(const std::string& target, const nlohmann::json& body = {});
  Result<nlohmann::json> remove(const std::string& target);
  // Works like post(), and also returns the problems of a refused run file.
  tl::expected<nlohmann::json, Refusal> submit(const std::string& target,
                                               const nlohmann::json& body);
  // Reads the lines of a streamed answer. A line of type "cut-off" is an error, because later lines
  // are lost.
  Result<net::StreamEnd> follow(const std::string& target, const FollowOptions& options);

  const std::string& socket() const { return socket_; }
  bool was_started() const { return started_; } // whether this connect() started nsad
  // Returns whether this is the host's daemon, which is used only on request.
  bool is_system() const {
    return !address_.socket.empty() && address_.socket == address_.system_socket;
  }

  static constexpr Duration kTimeout = std::chrono::seconds(30);

private:
  Daemon(DaemonAddress address, std::string socket, bool started)
      : address_(std::move(address)), socket_(std::move(socket)), started_(started) {}
  Status find_successor(); // called after nsad has gone
  tl::expected<std::string, Refusal> exchange(const std::string& method, const std::string& target,
                                              const nlohmann::json* body, Duration timeout);
  tl::expected<nlohmann::json, Refusal> call(const std::string& method, const std::string& target,
                                             const nlohmann::json* body, Duration timeout);
  DaemonAddress address_;
  std::string socket_;
  bool started_;
};

// Returns "/v1/runs/<run, encoded>" + rest.
std::string run_target(std::string_view run, std::string_view rest = {});

template <class T> Result<T> read_as(const nlohmann::json& json) {
  try {
    return json.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, std::string("nsad's answer has the wrong shape: ") + e.what());
  }
}

// Reads the items of {"items":[...]}.
template <class T> Result<std::vector<T>> read_items(const nlohmann::json& json) {
  const auto items = json.find("items");
  if (items == json.end()) return fail(ErrorCode::kCorrupt, "nsad's answer has no items");
  return read_as<std::vector<T>>(*items);
}

} // namespace nsa::client
