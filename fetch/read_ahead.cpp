#include "fetch/read_ahead.h"

#include <algorithm>
#include <cstring>

namespace nsa::fetch {
namespace {

// Ranges with a smaller gap between them are requested together.
constexpr uint64_t kSmallGap = uint64_t{256} << 10;

} // namespace

ReadAhead::ReadAhead(std::unique_ptr<Http::File> file, ReadAheadOptions options,
                     std::stop_token stop)
    : file_(std::move(file)), options_(options), stop_(std::move(stop)) {
  for (int i = 0; i < options_.connections; ++i)
    threads_.emplace_back([this](std::stop_token enough) { fetch_pieces(std::move(enough)); });
}

ReadAhead::~ReadAhead() {
  for (std::jthread& thread : threads_)
    thread.request_stop();
  threads_.clear();
}

void ReadAhead::expect(std::vector<Extent> extents) {
  const std::scoped_lock lock(mutex_);
  std::vector<Extent> joined;
  for (const Extent& extent : extents) {
    if (!joined.empty() && extent.offset <= joined.back().offset + joined.back().bytes + kSmallGap)
      joined.back().bytes = extent.offset + extent.bytes - joined.back().offset;
    else
      joined.push_back(extent);
  }
  uint64_t most = options_.first_piece_bytes;
  for (const Extent& extent : joined)
    for (uint64_t at = 0; at < extent.bytes;) {
      auto piece = std::make_unique<Piece>();
      piece->extent = {extent.offset + at, std::min(most, extent.bytes - at)};
      at += piece->extent.bytes;
      most = std::min(most * 2, options_.piece_bytes);
      pieces_.push_back(std::move(piece));
    }
  changed_.notify_all();
}

ReadAhead::Piece* ReadAhead::next_piece() {
  uint64_t ahead = 0;
  for (const auto& piece : pieces_) {
    ahead += piece->extent.bytes;
    if (ahead > options_.ahead_bytes && piece != pieces_.front()) return nullptr;
    if (!piece->begun) return piece.get();
  }
  return nullptr;
}

void ReadAhead::fetch_pieces(const std::stop_token& enough) {
  std::unique_lock lock(mutex_);
  while (true) {
    Piece* piece = nullptr;
    if (!changed_.wait(lock, enough, [&] { return (piece = next_piece()) != nullptr; })) return;
    piece->begun = true; // a begun piece is dropped only after it is done
    lock.unlock();
    std::vector<char> data(piece->extent.bytes);
    Status status = file_->read(piece->extent.offset, data, enough);
    lock.lock();
    piece->data = std::move(data);
    piece->status = std::move(status);
    piece->done = true;
    changed_.notify_all();
  }
}

ReadAhead::Piece* ReadAhead::piece_at(uint64_t offset) {
  const auto it = std::partition_point(pieces_.begin(), pieces_.end(), [&](const auto& piece) {
    return piece->extent.offset + piece->extent.bytes <= offset;
  });
  return it == pieces_.end() || (*it)->extent.offset > offset ? nullptr : it->get();
}

Status ReadAhead::read_at(uint64_t offset, std::span<char> out) {
  std::unique_lock lock(mutex_);
  while (!out.empty()) {
    Piece* const piece = piece_at(offset);
    if (!piece) {
      lock.unlock();
      return file_->read(offset, out, {}); // for example, a footer
    }
    if (!changed_.wait(lock, stop_, [&] { return piece->done; }))
      return fail(ErrorCode::kUnavailable, "interrupted");
    if (!piece->status) return piece->status;
    const size_t skip = offset - piece->extent.offset;
    const size_t count = std::min<uint64_t>(out.size(), piece->extent.bytes - skip);
    std::memcpy(out.data(), piece->data.data() + skip, count);
    offset += count;
    out = out.subspan(count);
    // Extents are read in order, so pieces before this one are dropped. (A range that is requested
    // again is fetched again.)
    while (pieces_.front().get() != piece && pieces_.front()->done)
      pieces_.pop_front();
    if (offset == piece->extent.offset + piece->extent.bytes && pieces_.front().get() == piece)
      pieces_.pop_front();
    changed_.notify_all();
  }
  return {};
}

} // namespace nsa::fetch
