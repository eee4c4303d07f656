#pragma once
// Cuts the token ranges of K/V columns into units of work. The backward kernel, the sum over units
// and the host code that sizes the buffers share it.

#include "nsa_model/kernels/block_backward/block_backward.h"

namespace nsa::kernels {

// 64-key tiles in one column. Both consumer warpgroups read the same rows, each with its own keys.
inline constexpr int kUnitTiles = 2;
inline constexpr int kUnitKeys = kUnitTiles * kBlock;

// Some tokens that see a column of 128 keys. They produce one partial result.
struct RangeUnit {
  int kv_head; // batch * groups + group
  int column;
  int begin; // first token
  int end;   // past the last token; > begin
  int64_t slot;
  bool backwards; // tokens are visited from the last to the first
};

// A sliding window's columns are short and of similar length: each is one unit and one share.
//
// Each causal column is one unit too, if few workers are then idle (even_pairs). The longest and
// the shortest column form a share, then the longest and the shortest of the rest, so shares have
// similar lengths. Their tokens are visited from the end of the sequence, where all columns begin.
// So one read from memory serves all columns of a KV head.
//
// In other cases a column's tokens reach from its first key to the end, so lengths vary from 0 to
// the sequence. The work is then done in a few rounds, each a range of KV heads and a band of
// tokens. The rows of a band stay in the L2 cache while all columns visit them. The steps of a
// round (16 tokens each), ordered by KV head, column and token, are divided among the workers
// (CTAs) in equal shares. A share covers pieces of one or more columns: the units. Their results
// take at most kMostRounds * workers + bands * columns * kv_heads slots, which is linear in the
// sequence.
struct RangeUnits {
  static constexpr int kStep = 16; // tokens

  KeyRange range;
  int window;
  int token_end;
  int kv_heads; // batch * groups
  int workers;
  int columns; // groups of 128 keys that a token before token_end can see
  bool whole;  // a column is one unit
  bool paired; // and a share is two columns
  int kv_head_rounds = 1;
  int bands = 1;
  int band_tokens;

  // With own_round_rows, rounds have about that many (token, KV head) pairs, and there are as many
  // rounds as the sequence needs.
  __host__ __device__ RangeUnits(KeyRange key_range, int window_keys, int end, int kv_head_count,
                                 int worker_count, int own_round_rows = 0)
      : range(key_range), window(window_keys), token_end(end), kv_heads(kv_head_count),
        workers(worker_count) {
    const int keys = key_range == KeyRange::kCompressed ? visible_compressed(end - 1) : end;
    columns = (keys + kUnitKeys - 1) / kUnitKeys;
    const bool is_short = window + kUnitKeys <= kWholeColumnTokens;
    paired = key_range != KeyRange::kCompressed && !is_short && window >= end && even_pairs();
    whole = paired || (key_range == KeyRange::kWindow && is_short);
    if (!whole) {
      const int rows = own_round_rows > 0 ? own_round_rows : kRoundRows;
      int rounds = static_cast<int>(int64_t{end} * kv_heads / rows);
      if (own_round_rows == 0) { // with few columns, rounds save few reads
        rounds = rounds < columns / 4 ? rounds : columns / 4;
        rounds = rounds > kMostRounds ? kMostRounds : rounds;
      }
      rounds = rounds < 1 ? 1 : rounds;
      kv_head_rounds = rounds < kv_heads ? rounds : kv_heads;
      bands = rounds / kv_head_rounds;
    }
    band_tokens = ((end + bands - 1) / bands + kStep - 1) / kStep * kStep;
  }
  // Tokens [first, last) see at least one key of the column.
  __host__ __device__ int first(int column) const { return first_seen(range, column * kUnitKeys); }
  __host__ __device__ int last(int column) const {
    return last_seen(range, window, token_end, column * kUnitKeys + kUnitKeys - 1) + 1;
  }
  // First and last token before token_end that see a key.
  __host__ __device__ static int first_seen(KeyRange range, int key) {
    return range == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
  }
  __host__ __device__ static int last_seen(KeyRange range, int window, int token_end, int key) {
    if (range == KeyRange::kCompressed) return token_end - 1;
    const int64_t past = static_cast<int64_t>(key) + window;
    return static_cast<int>(past < token_end ? past : token_end) - 1;
  }

  // Returns the share that a worker processes in its nth turn; the longest come first. Workers
  // reverse their order every turn, so that no worker always gets the longer column.
  __host__ __device__ static int share_of_turn(int turn, int worker, int workers) {
    return turn * workers + (turn % 2 == 0 ? worker : workers - 1 - worker);
  }
  __host__ __device__ int shares() const {
    if (paired) return pairs() * kv_heads;
    return whole ? columns * kv_heads : kv_head_rounds * bands * workers;
  }
  __host__ __device__ int64_t slots() const {
    if (whole || columns == 0) return int64_t{columns} * kv_heads;
    return bands * band_slots();
  }
  // Slots of one band; those of the bands follow each other.
  __host__ __device__ int64_t band_slots() const {
    return int64_t{kv_head_rounds} * workers + int64_t{columns} * kv_heads;
  }

  // Iterates over the units of a share.
  struct Walk {
    int band;
    int shift; // offset of the slots: worker and round of KV heads
    int kv_head;
    int column;
    int step;     // within the column
    int64_t left; // remaining steps of the share
  };
  __host__ __device__ Walk walk(int share) const {
    Walk walk = {};
    if (paired) {
      walk.kv_head = share / pairs();
      walk.column = share % pairs();
      walk.left = steps(walk.column, 0) + steps(columns - 1 - walk.column, 0);
      return walk;
    }
    if (whole) {
      walk.kv_head = share % kv_heads;
      walk.column = share / kv_heads;
      walk.left = steps(walk.column, 0);
      return walk;
    }
    const int worker = share % workers;
    const int kv_head_round = share / workers % kv_head_rounds;
    walk.band = share / workers / kv_head_rounds;
    walk.shift = kv_head_round * workers + worker;
    const int kv_head_steps = steps_before(columns, walk.band);
    const int64_t total =
        int64_t{kv_head_steps} * (first_kv_head(kv_head_round + 1) - first_kv_head(kv_head_round));
    const int64_t position = share_begin(total, worker);
    walk.left = share_begin(total, worker + 1) - position;
    if (walk.left == 0) return walk;
    walk.kv_head = first_kv_head(kv_head_round) + static_cast<int>(position / kv_head_steps);
    walk.step = static_cast<int>(position % kv_head_steps);
    while (walk.step >= steps(walk.column, walk.band)) {
      walk.step -= steps(walk.column, walk.band);
      ++walk.column;
    }
    return walk;
  }
  // Returns the next unit of the share; false after the last.
  __host__ __device__ bool next(Walk& walk, RangeUnit& unit) const {
    if (walk.left <= 0) return false;
    int available = steps(walk.column, walk.band) - walk.step;
    while (available == 0) { // a column may have no token in this band
      walk.step = 0;
      if (paired) {
        walk.column = columns - 1 - walk.column;
      } else if (++walk.column == columns) {
        walk.column = 0;
        ++walk.kv_head;
      }
      available = steps(walk.column, walk.band);
    }
    const int taken = available < walk.left ? available : static_cast<int>(walk.left);
    unit.kv_head = walk.kv_head;
    unit.column = walk.column;
    unit.begin = begin_of(walk.column, walk.band) + walk.step * kStep;
    const int past = unit.begin + taken * kStep;
    const int end = end_of(walk.column, walk.band);
    unit.end = past < end ? past : end;
    unit.slot = whole ? int64_t{walk.column} * kv_heads + walk.kv_head
                      : slot(walk.band, walk.shift, walk.kv_head, walk.column);
    unit.backwards = paired;
    walk.step += taken;
    walk.left -= taken;
    return true;
  }
  // A unit may start at every band, and at every worker's share in it.
  __host__ __device__ int most_units_of_a_column(const RangeBands& some = {}) const {
    return whole ? 1 : (some.count > 0 ? some.count : bands) * (workers + 1);
  }
  // Calls visit(slot) for every unit of a column, or for those in some bands, in the order of
  // tokens.
  template <typename Visit>
  __host__ __device__ void for_units_of(int kv_head, int column, Visit visit,
                                        const RangeBands& some = {}) const {
    if (column >= columns) return;
    if (whole) {
      if (steps(column, 0) > 0) visit(int64_t{column} * kv_heads + kv_head);
      return;
    }
    // This is the last round of KV heads that begins at or before this KV head.
    const int kv_head_round = ((kv_head + 1) * kv_head_rounds - 1) / kv_heads;
    const int round_kv_heads = first_kv_head(kv_head_round + 1) - first_kv_head(kv_head_round);
    const int past = some.count > 0 ? some.first + some.count : bands;
    for (int band = some.first; band < past; ++band) {
      const int kv_head_steps = steps_before(columns, band);
      const int64_t total = int64_t{kv_head_steps} * round_kv_heads;
      const int64_t position = int64_t{kv_head - first_kv_head(kv_head_round)} * kv_head_steps +
                               steps_before(column, band);
      const int64_t end = position + steps(column, band);
      if (position == end) continue;
      // The last worker whose share begins at or before a position.
      const auto worker_at = [&](int64_t at) {
        return static_cast<int>(((at + 1) * workers - 1) / total);
      };
      const int last_worker = worker_at(end - 1);
      for (int worker = worker_at(position); worker <= last_worker; ++worker)
        // Shares may be empty if there are fewer steps than workers.
        if (total >= workers || share_begin(total, worker) < share_begin(total, worker + 1))
          visit(slot(band, kv_head_round * workers + worker, kv_head, column));
    }
  }

private:
  static constexpr int kWholeColumnTokens = 640;
  // Number of (token, KV head) pairs in a round, approximately. Q and dO of a pair take 1.5 KB with
  // six heads.
  static constexpr int kRoundRows = 16384;
  static constexpr int kMostRounds = 4;
  static constexpr int kFewestPairedColumns = 8;
  static constexpr int kOfIdle = 15;

  __host__ __device__ int pairs() const { return columns / 2; }
  // Whether the workers that are idle in the last turn are few compared with all shares. 32,768
  // tokens of two groups are 1.94 turns of 132 workers at any length.
  __host__ __device__ bool even_pairs() const {
    const int64_t all = int64_t{pairs()} * kv_heads;
    const int64_t idle = (workers - all % workers) % workers;
    return columns >= kFewestPairedColumns && columns % 2 == 0 && kOfIdle * idle <= all;
  }
  __host__ __device__ int begin_of(int column, int band) const {
    const int seen = first(column);
    return seen > band * band_tokens ? seen : band * band_tokens;
  }
  __host__ __device__ int end_of(int column, int band) const {
    const int seen = last(column);
    return seen < (band + 1) * band_tokens ? seen : (band + 1) * band_tokens;
  }
  __host__ __device__ int steps(int column, int band) const {
    const int tokens = end_of(column, band) - begin_of(column, band);
    return tokens <= 0 ? 0 : (tokens + kStep - 1) / kStep;
  }
  // Steps of one KV head in the columns before this one.
  __host__ __device__ int steps_before(int column, int band) const {
    int sum = 0;
    for (int i = 0; i < column; ++i)
      sum += steps(i, band);
    return sum;
  }
  __host__ __device__ int64_t share_begin(int64_t total, int worker) const {
    return total * worker / workers;
  }
  __host__ __device__ int first_kv_head(int kv_head_round) const {
    return static_cast<int>(int64_t{kv_heads} * kv_head_round / kv_head_rounds);
  }
  // In step order, either the worker or the column increases from unit to unit, so slots are
  // distinct.
  __host__ __device__ int64_t slot(int band, int shift, int kv_head, int column) const {
    return band * band_slots() + shift + int64_t{kv_head} * columns + column;
  }
};

} // namespace nsa::kernels
