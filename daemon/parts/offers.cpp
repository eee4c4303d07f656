#include "daemon/parts/offers.h"

#include "common/base/log.h"

#include <unistd.h>

namespace nsa::parts {

namespace {

constexpr Duration kAgain = std::chrono::milliseconds(50);
constexpr size_t kMostAsked = 4 * transfer::Pace::kMost;

Result<std::string> read_range(const FileOpener& open, const std::string& path, uint64_t offset,
                               uint32_t bytes) {
  NSA_TRY_ASSIGN(const UniqueFd fd, open(path));
  std::string content(bytes, '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::pread(fd.get(), content.data() + done, content.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read " + path);
    if (got == 0) return fail(ErrorCode::kCorrupt, path + " is shorter than it was");
    done += static_cast<size_t>(got);
  }
  return content;
}

} // namespace

uint64_t Offers::add(OfferedFolder offered) {
  offers_[++last_id_].what = std::move(offered);
  return last_id_;
}

void Offers::refuse(const std::string& node, uint64_t id, const std::string& why) {
  (void)send_(node, frame_of(Message::kNoPiece, NoPiece{id, why}));
}

void Offers::take(const std::string& node, const wire::Frame& frame) {
  const auto ask = cluster::read_frame<Ask>(frame);
  if (!ask)
    return log::warning("parts", "a node's question is not understood",
                        {{"node", node}, {"why", ask.error().what}});
  const auto found = offers_.find(ask->offer);
  if (found == offers_.end() || found->second.what.node != node)
    return refuse(node, ask->offer, "nothing is offered under that number any more");
  Offer& offer = found->second;
  const auto& files = offer.what.files;
  if (ask->file >= files.size() || ask->bytes == 0 || ask->bytes > transfer::kPieceBytes ||
      ask->offset >= files[ask->file].bytes || ask->bytes > files[ask->file].bytes - ask->offset ||
      offer.asked.size() >= kMostAsked)
    return refuse(node, ask->offer, "that is no piece of a file that is offered");
  if (offer.what.is_wanted && !offer.what.is_wanted())
    return refuse(node, ask->offer, "nobody waits for these files any more");
  if (offer.what.progress) offer.what.progress(ask->here, transfer::total_bytes(files));
  offer.asked.push_back(*ask);
  read_next(ask->offer);
}

void Offers::read_next(uint64_t id) {
  const auto found = offers_.find(id);
  if (found == offers_.end() || found->second.is_reading || found->second.asked.empty()) return;
  Offer& offer = found->second;
  const Ask ask = offer.asked.front();
  offer.asked.pop_front();
  offer.is_reading = true;
  const std::string path = offer.what.folder + "/" + offer.what.files[ask.file].name;
  readers_.run(
      {"", path},
      [open = offer.what.open, path, ask] { return read_range(open, path, ask.offset, ask.bytes); },
      [this, id, ask](Result<std::string> content) {
        const auto still = offers_.find(id);
        if (still == offers_.end()) return;
        still->second.is_reading = false;
        if (!content) return refuse(still->second.what.node, id, content.error().what);
        deliver(id, piece_frame({id, ask.file, ask.offset, *content}));
      });
}

// The next piece is read only after this one was sent, so that pieces keep their order.
void Offers::deliver(uint64_t id, wire::Frame frame) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return;
  const auto sent = send_(found->second.what.node, frame);
  if (!sent && sent.error().code == ErrorCode::kExhausted) {
    found->second.is_reading = true;
    again_[id] = loop_.after(kAgain, [this, id, frame = std::move(frame)] {
      const auto offer = offers_.find(id);
      if (offer == offers_.end()) return;
      offer->second.is_reading = false;
      deliver(id, frame);
    });
    return;
  }
  read_next(id);
}

void Offers::on_lost(const std::string& node) {
  for (auto& [id, offer] : offers_)
    if (offer.what.node == node) offer.asked.clear();
}

} // namespace nsa::parts
