// The server behind `nsactl ui`. It serves the page's files, which are built into nsactl, and
// answers of nsad.
//
// All functions run on the loop's thread. Threads of Offload do the work that waits for nsad or a
// disk. Destroying the server closes the port and every connection.
#pragma once

#include "common/base/result.h"
#include "common/net/event_loop.h"

#include <memory>
#include <string>

namespace nsa::ui {

struct PageOptions {
  std::string socket; // nsad's socket
  std::string token;
  uint16_t port = 0; // 0 selects any free port
  bool allow_actions = false;
};

class PageServer {
public:
  virtual ~PageServer() = default;
  // Listens on 127.0.0.1 only. Error: kSystem if the port is in use.
  static Result<std::unique_ptr<PageServer>> start(net::EventLoop& loop, PageOptions options);
  virtual uint16_t port() const = 0;
};

// Returns 32 random hexadecimal digits from the kernel.
Result<std::string> make_token();

} // namespace nsa::ui
