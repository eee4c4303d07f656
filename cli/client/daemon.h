// nsactl's end of the HTTP API: finds nsad, starts it on demand, asks, follows. Blocking; one call
// at a time. Every request carries the API version; a daemon that cannot speak it is an error that
// says what to do.
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
  std::string socket;                                  // empty: by net::user_paths()
  std::string program_dir;                             // where nsad lies
  bool may_start = true;                               // start nsad when nobody listens
  std::function<void(const std::string& text)> notice; // what nsad says beside an answer
  std::string system_socket; // the system daemon's: `socket` is it, or what to try by --system
  bool escape = false;       // texts come as a terminal may show them: see printable()
};

// A refusal with everything the daemon said: of a run file all its problems. The candidates of a
// name that fits several runs are lines of the error.
struct Refusal {
  Error error;
  std::vector<wire::ProblemView> problems;
};

struct FollowOptions {
  std::function<bool(const nlohmann::json& line)> line; // false: enough
  std::function<bool()> tick;                           // about twice a second; false: enough
  int interrupt_fd = -1;                                // readable: stop
};

class Daemon {
public:
  // kUnavailable when there is none and none may, or can, be started.
  static Result<Daemon> connect(const DaemonAddress& address);

  Result<nlohmann::json> get(const std::string& target, Duration timeout = kTimeout);
  // The same as it came, for answers that are too long to be read into a document.
  Result<std::string> get_text(const std::string& target, Duration timeout = kTimeout);
  Result<nlohmann::json> post(const std::string& target, const nlohmann::json& body = {});
  Result<nlohmann::json> remove(const std::string& target);
  // As post, with the problems of a refused run file.
  tl::expected<nlohmann::json, Refusal> submit(const std::string& target,
                                               const nlohmann::json& body);
  // Lines of a streamed answer. A line of type "cut-off" is an error: what follows is lost.
  Result<net::StreamEnd> follow(const std::string& target, const FollowOptions& options);

  const std::string& socket() const { return socket_; }
  bool was_started() const { return started_; } // by this connect()
  // The host's own daemon, which is used only when it was asked for.
  bool is_system() const {
    return !address_.socket.empty() && address_.socket == address_.system_socket;
  }

  static constexpr Duration kTimeout = std::chrono::seconds(30);

private:
  Daemon(DaemonAddress address, std::string socket, bool started)
      : address_(std::move(address)), socket_(std::move(socket)), started_(started) {}
  Status find_successor(); // of an nsad that has gone
  tl::expected<std::string, Refusal> exchange(const std::string& method, const std::string& target,
                                              const nlohmann::json* body, Duration timeout);
  tl::expected<nlohmann::json, Refusal> call(const std::string& method, const std::string& target,
                                             const nlohmann::json* body, Duration timeout);
  DaemonAddress address_;
  std::string socket_;
  bool started_;
};

// "/v1/runs/<run, encoded>" + rest.
std::string run_target(std::string_view run, std::string_view rest = {});

template <class T> Result<T> read_as(const nlohmann::json& json) {
  try {
    return json.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, std::string("nsad's answer has the wrong shape: ") + e.what());
  }
}

// The items of {"items":[...]}.
template <class T> Result<std::vector<T>> read_items(const nlohmann::json& json) {
  const auto items = json.find("items");
  if (items == json.end()) return fail(ErrorCode::kCorrupt, "nsad's answer has no items");
  return read_as<std::vector<T>>(*items);
}

} // namespace nsa::client
