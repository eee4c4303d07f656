#include "daemon/parts/fetches.h"

#include <condition_variable>
#include <deque>

namespace nsa::parts {

namespace {
// The head reads a disk and sends one piece at a time, so a silence of this length is a fault.
constexpr Duration kSilence = std::chrono::seconds(60);
} // namespace

class Fetches::Mailbox final : public transfer::Source {
public:
  Mailbox(uint64_t offer, std::shared_ptr<Gate> gate) : offer_(offer), gate_(std::move(gate)) {}

  Status ask(size_t file, transfer::Range range, uint64_t here) override {
    const Ask ask{offer_, file, range.offset, range.bytes, here};
    const std::lock_guard lock(gate_->mutex);
    if (gate_->loop == nullptr) return fail(ErrorCode::kUnavailable, "nsad is leaving");
    gate_->loop->post([gate = gate_, ask] {
      if (gate->loop != nullptr) (void)gate->send(frame_of(Message::kAsk, ask));
    });
    return {};
  }

  Result<transfer::Piece> next() override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kSilence, [this] { return ended_ || !pieces_.empty(); }))
      return fail(ErrorCode::kUnavailable, "the head has sent nothing for a minute");
    if (pieces_.empty()) return fail(*ended_);
    transfer::Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    return piece;
  }

  void put(transfer::Piece piece) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_one();
  }
  void end(Error why) {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_ = std::move(why);
    changed_.notify_one();
  }

private:
  const uint64_t offer_;
  const std::shared_ptr<Gate> gate_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<transfer::Piece> pieces_;
  std::optional<Error> ended_;
};

Fetches::Fetches(net::EventLoop& loop, Send send) : gate_(std::make_shared<Gate>()) {
  gate_->loop = &loop;
  gate_->send = std::move(send);
}

Fetches::~Fetches() {
  {
    const std::lock_guard lock(gate_->mutex);
    gate_->loop = nullptr;
  }
  on_cut();
}

std::shared_ptr<transfer::Source> Fetches::open(uint64_t offer) {
  std::erase_if(mailboxes_, [](const auto& entry) { return entry.second.expired(); });
  auto mailbox = std::make_shared<Mailbox>(offer, gate_);
  mailboxes_[offer] = mailbox;
  return mailbox;
}

void Fetches::take(const wire::Frame& frame) {
  if (frame.type == static_cast<uint8_t>(Message::kNoPiece)) {
    const auto refused = cluster::read_frame<NoPiece>(frame);
    if (!refused) return;
    const auto found = mailboxes_.find(refused->offer);
    if (found == mailboxes_.end()) return;
    if (const auto mailbox = found->second.lock())
      mailbox->end({ErrorCode::kUnavailable, "the head: " + refused->why, ""});
    return;
  }
  auto piece = read_piece_frame(frame);
  if (!piece) return;
  const auto found = mailboxes_.find(piece->offer);
  if (found == mailboxes_.end()) return;
  if (const auto mailbox = found->second.lock())
    mailbox->put({piece->file, piece->offset, std::move(piece->bytes)});
}

void Fetches::on_cut() {
  for (const auto& [offer, held] : mailboxes_)
    if (const auto mailbox = held.lock())
      mailbox->end({ErrorCode::kUnavailable, "the link to the head was cut", ""});
  mailboxes_.clear();
}

} // namespace nsa::parts
