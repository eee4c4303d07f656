// The shim's end of the connection to nsad. It listens on <attempt folder>/shim.sock (mode 0600)
// and accepts an nsad of the same user that knows the attempt's token. It sends the hello with the
// progress pages, then the outbox, and passes requests on. A newer connection replaces an older
// one: one nsad runs at a time, so the older is dead or about to be. One thread (the shim's loop).
#pragma once

#include "common/wire/messages.h"
#include "daemon/shim/event_loop.h"
#include "daemon/shim/outbox.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nsa::shim {

class DaemonLink {
public:
  struct Events {
    std::function<wire::ShimHello()> make_hello;
    std::function<std::vector<int>()> page_fds; // in the order of the hello's ranks
    std::function<void()> on_connected;         // after a good hello
    std::function<void(wire::Message)> on_request;
    std::function<void()> on_acknowledged;
    std::function<void()> on_lost; // the connection of a greeted nsad has closed
  };
  DaemonLink(EventLoop& loop, Outbox& outbox, std::string token, Events events)
      : loop_(loop), outbox_(outbox), token_(std::move(token)), events_(std::move(events)) {}
  ~DaemonLink();
  DaemonLink(const DaemonLink&) = delete;
  DaemonLink& operator=(const DaemonLink&) = delete;

  Status listen(int attempt_folder_fd);
  bool connected() const { return daemon_ != nullptr; }
  // Sends what the outbox holds as far as the socket takes it; call it after each push.
  void flush();

private:
  struct Connection {
    UniqueFd socket;
    wire::FrameDecoder decoder;
    std::string outgoing;
    std::vector<int> pages; // go with the first bytes sent
    EventLoop::Timer hello_limit = 0;
    uint64_t serial = 0; // in the order of arrival
    bool greeted = false;
    bool deaf = false; // takes no more bytes
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void accept();
  void close_oldest_stranger();
  void on_events(const ConnectionPtr& connection, uint32_t events);
  void read(const ConnectionPtr& connection);
  void write(const ConnectionPtr& connection);
  bool take(const ConnectionPtr& connection, wire::Message message); // false: closed by it
  bool greet(const ConnectionPtr& connection, const wire::Message& message);
  void close(const ConnectionPtr& connection, const std::string& why);

  EventLoop& loop_;
  Outbox& outbox_;
  std::string token_;
  Events events_;
  UniqueFd listener_;
  std::map<int, ConnectionPtr> connections_; // by descriptor; greeted or not yet
  ConnectionPtr daemon_;                     // the greeted one
  uint64_t last_serial_ = 0;
};

} // namespace nsa::shim
