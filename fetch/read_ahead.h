// A remote file as a ByteSource. It prefetches the expected ranges over several connections and in
// pieces, so that a slow answer does not stop the reader. At most `ahead_bytes` are in memory. One
// reader; the destructor ends its threads.
#pragma once

#include "fetch/byte_source.h"
#include "fetch/http.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace nsa::fetch {

struct ReadAheadOptions {
  int connections = 4;
  // Pieces double from the first size to this one. So the first documents come soon from a slow
  // server, and after each continuation.
  uint64_t first_piece_bytes = uint64_t{256} << 10;
  uint64_t piece_bytes = uint64_t{8} << 20;
  uint64_t ahead_bytes = uint64_t{128} << 20;
};

class ReadAhead final : public ByteSource {
public:
  ReadAhead(std::unique_ptr<Http::File> file, ReadAheadOptions options, std::stop_token stop);
  ~ReadAhead() override;

  uint64_t size() const override { return *file_->identity().bytes; }
  void expect(std::vector<Extent> extents) override;
  Status read_at(uint64_t offset, std::span<char> out) override;

private:
  struct Piece {
    Extent extent;
    bool begun = false, done = false;
    std::vector<char> data;
    Status status;
  };

  void fetch_pieces(const std::stop_token& enough);
  Piece* next_piece();
  Piece* piece_at(uint64_t offset);

  std::unique_ptr<Http::File> file_;
  const ReadAheadOptions options_;
  const std::stop_token stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::unique_ptr<Piece>> pieces_; // ascending; pieces that were read are dropped
  // Last, so that the threads end before the other members are destroyed.
  std::vector<std::jthread> threads_;
};

} // namespace nsa::fetch
