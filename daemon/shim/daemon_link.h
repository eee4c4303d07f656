// The shim's end of the connection to nsad. It listens on <attempt folder>/shim.sock (mode 0600)
// and accepts an nsad of the same user that knows the attempt's token. It sends the hello with the
// progress pages, then the outbox, and passes requests on. A newer connection replaces an older
// one: only one nsad runs at a time, so the older one is dead or about to die. One thread (the
// shim's loop).
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
    std::function<void()> on_connected;         // called after a valid hello
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
  // Sends the outbox as far as the socket accepts it. Call it after each push.
  void flush();

private:
  struct Connection {
    UniqueFd socket;
    wire::FrameDecoder decoder;
    std::string outgoing;
    std::vector<int> pages; // sent with the first bytes
    EventLoop::Timer hello_limit = 0;
    uint64_t serial = 0; // order of arrival
    bool greeted = false;
    bool deaf = false; // the peer accepts no more bytes
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void accept();
  void close_oldest_stranger();
  void on_events(const ConnectionPtr& connection, uint32_t events);
  void read(const ConnectionPtr& connection);
  void write(const ConnectionPtr& connection);
  // False if the message closed the connection.
  bool take(const ConnectionPtr& connection, wire::Message message);
  bool greet(const ConnectionPtr& connection, const wire::Message& message);
  void close(const ConnectionPtr& connection, const std::string& why);

  EventLoop& loop_;
  Outbox& outbox_;
  std::string token_;
  Events events_;
  UniqueFd listener_;
  std::map<int, ConnectionPtr> connections_; // by descriptor, greeted or not
  ConnectionPtr daemon_;                     // the greeted connection
  uint64_t last_serial_ = 0;
};

} // namespace nsa::shim
