// The server behind `nsactl ui`: files of the page, which are built into nsactl, and answers of
// nsad.
//
// All on the loop's thread. What waits for nsad or a disk runs on threads of Offload. Destroying it
// closes the port and every connection.
#pragma once

#include "common/base/result.h"
#include "common/net/event_loop.h"

#include <memory>
#include <string>

namespace nsa::ui {

struct PageOptions {
  std::string socket; // of nsad
  std::string token;
  uint16_t port = 0; // 0: any free one
  bool allow_actions = false;
};

class PageServer {
public:
  virtual ~PageServer() = default;
  // On 127.0.0.1 only. kSystem where the port is in use.
  static Result<std::unique_ptr<PageServer>> start(net::EventLoop& loop, PageOptions options);
  virtual uint16_t port() const = 0;
};

// 32 hexadecimal digits from the kernel.
Result<std::string> make_token();

} // namespace nsa::ui
