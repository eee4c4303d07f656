// Supervises one live attempt: the connection to its shim, its ranks (RankWatch) and the hang
// detector. It passes what it learns to its listener as events of the state machine, and requests
// to the shim.
//
// All calls are on the loop's thread. Destroying it leaves the shim and the ranks alone.
#pragma once

#include "common/net/event_loop.h"
#include "daemon/shim/client/client.h"
#include "daemon/supervision/hang_watch.h"
#include "daemon/supervision/message_guard.h"
#include "daemon/supervision/rank_watch.h"
#include "daemon/supervision/shim_connection.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

class AttemptSupervisor final : public ShimConnection {
public:
  AttemptSupervisor(net::EventLoop& loop, ShimListener& listener, Reach reach,
                    ShimConnectionOptions options);

  const std::vector<state::RankSample>& samples() const override { return ranks_.samples(); }
  bool caught_up() const override {
    return !options_.adopted && options_.acknowledged >= catch_up_to_;
  }
  state::Learned learned() const override { return hangs_.limits().learned(); }

  bool watching() const { return ranks_.watching() && ranks_.have_watermarks(); }

  void start() override;
  void observe(MonotonicTime now) override;
  void take_evidence(const std::string& id, double limit_seconds) override;
  void stop_ranks(bool checkpoint) override;
  void kill_ranks(const std::string& reason) override;
  void checkpoint_ranks() override;
  void acknowledge(uint64_t sequence) override;
  void release() override;
  void say_goodbye() override;

private:
  template <class Request> void ask(Request request); // without a connection the request is lost
  template <class Work, class Done> void call(const char* what, Work work, Done done);
  void connect();
  void greet(UniqueFd socket);
  void disconnect();
  void retry(Duration delay);
  void on_readable();
  void flush_writes();
  void handle(wire::Message& message);
  void handle_hello(const wire::ShimHello& hello);
  void handle_rank_message(const wire::RankMessage& message, uint64_t sequence);
  void handle_exit(const wire::RankExited& exited, uint64_t sequence);
  void handle_evidence(const wire::EvidenceTaken& taken);
  template <class T> void pass_on(const nlohmann::json& body, uint64_t sequence);
  void emit(state::EventBody body, uint64_t sequence = 0);

  void watch_shim();
  void on_shim_ended();
  bool take_over(const shim::StartedAttempt& started);
  void sweep();
  void conclude_sweep(const Result<int>& left);
  void expect_end(const char* asked);
  void kill_shim(const char* asked);

  net::EventLoop& loop_;
  ShimListener& listener_;
  Reach reach_;
  ShimConnectionOptions options_;
  std::optional<shim::ShimClient> client_;
  net::Watch readable_, writable_, shim_watch_;
  net::Timer retry_timer_, sweep_timer_, patience_timer_;
  RankWatch ranks_;
  std::unique_ptr<HangWatch> own_hangs_; // null: `whole` of the options looks for hangs
  HangWatch& hangs_;
  MessageGuard guard_;
  Duration retry_pause_;
  uint64_t oom_kills_ = 0;
  uint64_t catch_up_to_ = 0; // newest message of the shim at our first connection
  bool released_ = false, ended_ = false, first_step_done_ = false;
  int sweep_rounds_ = 0;
  // Expires with this object, so that late callbacks see that it has gone.
  std::shared_ptr<void> alive_;
};

} // namespace nsa::control
