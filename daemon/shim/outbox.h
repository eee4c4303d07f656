// Messages from the shim to nsad: numbered from 1 without a gap, kept until acknowledged, sent
// again after a reconnect. It does no socket I/O. A spill file takes what does not fit in memory
// while nsad is away. One thread.
//
// A message gets its number when it is first handed out, not when it is pushed. So a step report
// that was never sent can be replaced by a newer one of its rank without a gap.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/messages.h"

#include <deque>
#include <filesystem>
#include <list>
#include <optional>
#include <string>

namespace nsa::shim {

struct OutboxLimits {
  size_t window_bytes = 256 * 1024;       // sent and not acknowledged; always at least one message
  size_t memory_bytes = 256 * 1024;       // waiting in memory; more goes to the spill file
  size_t last_resort_bytes = 4096 * 1024; // waiting in memory when the spill file accepts no more
};

class Outbox {
public:
  Outbox(std::filesystem::path spill_path, OutboxLimits limits = {})
      : spill_path_(std::move(spill_path)), limits_(limits) {}
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Queues a message that must arrive; `body` is its JSON text.
  void push(wire::MessageType type, std::string body);
  // Queues a message that may be dropped: a rank's newest replaces one that has not been sent yet.
  // The body of a kPackedStep is packed. The outbox sends it as JSON to an nsad that needs that.
  void push_droppable(Rank rank, wire::MessageType type, std::string body);

  // The next frame to send. Null if all is sent, or if too much waits for acknowledgement. The
  // pointer is valid until the next call. Call sent() once the frame is taken.
  const std::string* next();
  void sent() { ++next_index_; }

  void acknowledge(uint64_t sequence);
  // A new connection whose nsad holds everything up to `acknowledged`: the rest is sent again.
  void rewind(uint64_t acknowledged, bool takes_packed = false);

  bool all_acknowledged() const {
    return held_.empty() && waiting_.empty() && spilled_ == 0 && behind_.empty();
  }
  uint64_t first_sequence() const { return last_sequence_ - held_.size() + 1; }
  uint64_t last_sequence() const { return last_sequence_; }
  uint64_t lost() const { return lost_; } // must-arrive messages that did not fit anywhere
  size_t memory_bytes() const { return held_bytes_ + waiting_bytes_; }

private:
  struct Waiting {
    wire::MessageType type{};
    std::string body;
    std::optional<Rank> droppable;
  };
  bool spill(const Waiting& message);
  Result<std::string> encode(const Waiting& message, uint64_t sequence) const;
  std::optional<Waiting> take_waiting();
  std::optional<Waiting> take_spilled();
  void remove_older(Rank rank);

  std::filesystem::path spill_path_;
  OutboxLimits limits_;
  std::deque<std::string> held_; // numbered frames; the last one is last_sequence_
  size_t held_bytes_ = 0;
  size_t next_index_ = 0; // index in held_ of the next frame to send
  uint64_t last_sequence_ = 0;
  bool takes_packed_ = false; // whether the connected nsad reads kPackedStep
  // Sending order: waiting_, the spill file, behind_ (what a full disk refused).
  std::list<Waiting> waiting_, behind_;
  size_t waiting_bytes_ = 0; // of both lists
  UniqueFd spill_file_;
  size_t spilled_ = 0; // messages in the file that are not taken yet
  uint64_t spill_read_ = 0, spill_end_ = 0;
  uint64_t lost_ = 0;
};

} // namespace nsa::shim
