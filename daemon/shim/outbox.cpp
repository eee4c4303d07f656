#include "daemon/shim/outbox.h"

#include "common/base/log.h"
#include "common/wire/packed.h"

#include <algorithm>
#include <fcntl.h>
#include <unistd.h>

namespace nsa::shim {

namespace {

// Header of a message in the spill file; the body follows. The process that wrote it reads it back.
struct SpillHeader {
  uint32_t type;
  uint32_t length;
};

// The form for an nsad that reads no packed steps, or steps of another layout.
wire::RankMessage in_json(std::string_view packed) {
  const wire::RankStep step = wire::unpack<wire::RankStep>(packed).value_or(wire::RankStep{});
  return {step.rank, static_cast<uint8_t>(wire::MessageType::kRankStep), step};
}

bool read_exactly(int fd, void* data, size_t size, uint64_t offset) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(fd, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

} // namespace

Outbox::~Outbox() {
  if (spill_file_) ::unlink(spill_path_.c_str());
}

void Outbox::push(wire::MessageType type, std::string body) {
  Waiting message{type, std::move(body), std::nullopt};
  // Once something is in the file, everything after it must go there too, to keep the order.
  // Messages that the file then refuses wait after it.
  const bool full = waiting_bytes_ + message.body.size() > limits_.memory_bytes;
  const bool to_file = spilled_ > 0 || (full && !waiting_.empty());
  if (to_file && behind_.empty() && spill(message)) return;
  if (waiting_bytes_ > limits_.last_resort_bytes && type != wire::MessageType::kRankExited) {
    if (lost_++ == 0)
      log::error("shim", "no room for what nsad must hear: the disk is full and memory used up");
    return;
  }
  waiting_bytes_ += message.body.size();
  (spilled_ > 0 ? behind_ : waiting_).push_back(std::move(message));
}

void Outbox::push_droppable(Rank rank, wire::MessageType type, std::string body) {
  remove_older(rank);
  if (spilled_ > 0) return; // it would overtake the messages in the file
  waiting_bytes_ += body.size();
  waiting_.push_back({type, std::move(body), rank});
}

void Outbox::remove_older(Rank rank) {
  const auto older = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& w) { return w.droppable == rank; });
  if (older == waiting_.end()) return;
  waiting_bytes_ -= older->body.size();
  waiting_.erase(older);
}

bool Outbox::spill(const Waiting& message) {
  if (!spill_file_)
    spill_file_.reset(
        ::open(spill_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!spill_file_) return false;
  const SpillHeader header{static_cast<uint32_t>(message.type),
                           static_cast<uint32_t>(message.body.size())};
  std::string record(reinterpret_cast<const char*>(&header), sizeof header);
  record += message.body;
  // The next record overwrites a short write, because the end moves only past whole records.
  if (::pwrite(spill_file_.get(), record.data(), record.size(), static_cast<off_t>(spill_end_)) !=
      static_cast<ssize_t>(record.size()))
    return false;
  spill_end_ += record.size();
  ++spilled_;
  return true;
}

// A JSON body is text already. It is inserted as text, so that a small process need not parse
// evidence of half a megabyte.
Result<std::string> Outbox::encode(const Waiting& message, uint64_t sequence) const {
  if (message.type != wire::MessageType::kPackedStep)
    return wire::encode_frame(
        {static_cast<uint8_t>(message.type), 0,
         "{\"body\":" + message.body + ",\"seq\":" + std::to_string(sequence) + "}"});
  if (takes_packed_) return wire::encode_packed_step(message.body, sequence);
  return wire::encode(wire::MessageType::kRankMessage, in_json(message.body), sequence);
}

std::optional<Outbox::Waiting> Outbox::take_spilled() {
  SpillHeader header{};
  Waiting message;
  bool whole = read_exactly(spill_file_.get(), &header, sizeof header, spill_read_);
  if (whole) {
    message.type = static_cast<wire::MessageType>(header.type);
    message.body.resize(header.length);
    whole = read_exactly(spill_file_.get(), message.body.data(), header.length,
                         spill_read_ + sizeof header);
  }
  if (!whole) {
    log::error("shim", "messages in the spill file cannot be read back and are lost",
               {{"messages", std::to_string(spilled_)}});
    lost_ += spilled_;
    spilled_ = 0;
  } else {
    spill_read_ += sizeof header + header.length;
    --spilled_;
  }
  if (spilled_ == 0) {
    spill_read_ = spill_end_ = 0;
    // A failure wastes only disk space.
    [[maybe_unused]] const int rc = ::ftruncate(spill_file_.get(), 0);
  }
  return whole ? std::optional(std::move(message)) : std::nullopt;
}

std::optional<Outbox::Waiting> Outbox::take_waiting() {
  if (waiting_.empty() && spilled_ > 0) return take_spilled();
  if (waiting_.empty()) waiting_.swap(behind_);
  if (waiting_.empty()) return std::nullopt;
  Waiting message = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_bytes_ -= message.body.size();
  return message;
}

const std::string* Outbox::next() {
  if (next_index_ < held_.size()) return &held_[next_index_];
  if (!held_.empty() && held_bytes_ >= limits_.window_bytes) return nullptr;
  while (auto message = take_waiting()) {
    auto frame = encode(*message, last_sequence_ + 1);
    if (!frame) { // the message is longer than a frame may be; senders limit their messages
      log::error("shim", "a message is too long and is lost", {{"why", frame.error().what}});
      ++lost_;
      continue;
    }
    ++last_sequence_;
    held_bytes_ += frame->size();
    held_.push_back(std::move(*frame));
    return &held_.back();
  }
  return nullptr;
}

void Outbox::acknowledge(uint64_t sequence) {
  while (!held_.empty() && first_sequence() <= sequence) {
    held_bytes_ -= held_.front().size();
    held_.pop_front();
    if (next_index_ > 0) --next_index_;
  }
}

void Outbox::rewind(uint64_t acknowledged, bool takes_packed) {
  acknowledge(acknowledged);
  next_index_ = 0;
  takes_packed_ = takes_packed;
  if (takes_packed) return;
  for (std::string& frame : held_) {
    wire::FrameDecoder decoder;
    decoder.feed(frame);
    const auto held = decoder.next();
    if (!held || (*held)->type != static_cast<uint8_t>(wire::MessageType::kPackedStep)) continue;
    const auto step = wire::decode_message(**held);
    auto again = encode({step->type, step->packed, std::nullopt}, step->sequence);
    held_bytes_ += again->size() - frame.size();
    frame = std::move(*again);
  }
}

} // namespace nsa::shim
