#pragma once
// How the token ranges of K/V columns are cut into units of work. Shared by the backward kernel, by
// the sum over units and by the host that sizes the buffers.

#include "nsa_model/kernels/block_backward/block_backward.h"

namespace nsa::kernels {

// 64-key tiles that one column holds: both consumer warpgroups walk the same rows, each with its
// own keys.
inline constexpr int kUnitTiles = 2;
inline constexpr int kUnitKeys = kUnitTiles * kBlock;

// Some tokens that see a column of 128 keys: one partial result.
struct RangeUnit {
  int lane; // batch * groups + group
  int column;
  int begin; // tokens
  int end;   // > begin
  int64_t slot;
};

// A sliding window's columns are short and alike: each is one unit and one share of the work.
// Elsewhere a column's tokens reach from its first key to the end, so lengths differ by the length
// of the sequence. There the work is done in a few rounds, each a range of lanes and a band of
// tokens whose rows stay in the L2 cache while all columns visit them. A round's steps of 16
// tokens, ordered by lane, column and token, are dealt to the workers (CTAs) in equal shares. A
// share covers pieces of one or more columns: the units. Their results take at most kMostRounds *
// workers + bands * columns * lanes slots: linear in the sequence.
struct RangeUnits {
  static constexpr int kStep = 16; // tokens

  KeyRange range;
  int window;
  int token_end;
  int lanes; // batch * groups
  int workers;
  int columns; // groups of 128 keys that some token before token_end can see
  bool whole;  // a column is one unit
  int lane_rounds = 1;
  int bands = 1;
  int band_tokens;

  __host__ __device__ RangeUnits(KeyRange key_range, int window_keys, int end, int lane_count,
                                 int worker_count)
      : range(key_range), window(window_keys), token_end(end), lanes(lane_count),
        workers(worker_count) {
    const int keys = key_range == KeyRange::kCompressed ? visible_compressed(end - 1) : end;
    columns = (keys + kUnitKeys - 1) / kUnitKeys;
    whole = key_range == KeyRange::kWindow && window + kUnitKeys <= kWholeColumnTokens;
    if (!whole) {
      int rounds = static_cast<int>(int64_t{end} * lanes / kRoundRows);
      rounds = rounds < columns / 4 ? rounds : columns / 4; // few columns share little
      rounds = rounds < 1 ? 1 : rounds > kMostRounds ? kMostRounds : rounds;
      lane_rounds = rounds < lanes ? rounds : lanes;
      bands = rounds / lane_rounds;
    }
    band_tokens = ((end + bands - 1) / bands + kStep - 1) / kStep * kStep;
  }
  // Tokens [first, last) see some key of the column.
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

  __host__ __device__ int shares() const {
    return whole ? columns * lanes : lane_rounds * bands * workers;
  }
  __host__ __device__ int64_t slots() const {
    if (whole || columns == 0) return int64_t{columns} * lanes;
    return int64_t{bands} * (int64_t{lane_rounds} * workers + int64_t{columns} * lanes);
  }

  // Walks the units of a share.
  struct Walk {
    int band;
    int shift; // of the slots: worker and round of lanes
    int lane;
    int column;
    int step;     // within the column
    int64_t left; // steps of the share
  };
  __host__ __device__ Walk walk(int share) const {
    Walk walk = {};
    if (whole) {
      walk.lane = share % lanes;
      walk.column = share / lanes;
      walk.left = steps(walk.column, 0);
      return walk;
    }
    const int worker = share % workers;
    const int lane_round = share / workers % lane_rounds;
    walk.band = share / workers / lane_rounds;
    walk.shift = lane_round * workers + worker;
    const int lane_steps = steps_before(columns, walk.band);
    const int64_t total =
        int64_t{lane_steps} * (first_lane(lane_round + 1) - first_lane(lane_round));
    const int64_t position = share_begin(total, worker);
    walk.left = share_begin(total, worker + 1) - position;
    if (walk.left == 0) return walk;
    walk.lane = first_lane(lane_round) + static_cast<int>(position / lane_steps);
    walk.step = static_cast<int>(position % lane_steps);
    while (walk.step >= steps(walk.column, walk.band)) {
      walk.step -= steps(walk.column, walk.band);
      ++walk.column;
    }
    return walk;
  }
  // The next unit of the share; false behind the last.
  __host__ __device__ bool next(Walk& walk, RangeUnit& unit) const {
    if (walk.left <= 0) return false;
    int available = steps(walk.column, walk.band) - walk.step;
    while (available == 0) { // a column may have no token in this band
      walk.step = 0;
      if (++walk.column == columns) {
        walk.column = 0;
        ++walk.lane;
      }
      available = steps(walk.column, walk.band);
    }
    const int taken = available < walk.left ? available : static_cast<int>(walk.left);
    unit.lane = walk.lane;
    unit.column = walk.column;
    unit.begin = begin_of(walk.column, walk.band) + walk.step * kStep;
    const int past = unit.begin + taken * kStep;
    const int end = end_of(walk.column, walk.band);
    unit.end = past < end ? past : end;
    unit.slot = whole ? int64_t{walk.column} * lanes + walk.lane
                      : slot(walk.band, walk.shift, walk.lane, walk.column);
    walk.step += taken;
    walk.left -= taken;
    return true;
  }
  // Every band may start a unit, and so may every worker in it.
  __host__ __device__ int most_units_of_a_column() const {
    return whole ? 1 : bands * (workers + 1);
  }
  // Calls visit(slot) for every unit of a column, in the order of tokens.
  template <typename Visit>
  __host__ __device__ void for_units_of(int lane, int column, Visit visit) const {
    if (column >= columns) return;
    if (whole) {
      if (steps(column, 0) > 0) visit(int64_t{column} * lanes + lane);
      return;
    }
    // The last round of lanes that begins at or before this lane.
    const int lane_round = ((lane + 1) * lane_rounds - 1) / lanes;
    const int round_lanes = first_lane(lane_round + 1) - first_lane(lane_round);
    for (int band = 0; band < bands; ++band) {
      const int lane_steps = steps_before(columns, band);
      const int64_t total = int64_t{lane_steps} * round_lanes;
      int64_t position =
          int64_t{lane - first_lane(lane_round)} * lane_steps + steps_before(column, band);
      const int64_t end = position + steps(column, band);
      while (position < end) {
        // The last worker whose share begins at or before this position.
        const int worker = static_cast<int>(((position + 1) * workers - 1) / total);
        visit(slot(band, lane_round * workers + worker, lane, column));
        position = share_begin(total, worker + 1);
      }
    }
  }

private:
  static constexpr int kWholeColumnTokens = 640;
  // A round holds about this many (token, lane) pairs, of 1.5 KB each with six heads: Q and dO.
  static constexpr int kRoundRows = 16384;
  static constexpr int kMostRounds = 4;

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
  // Of one lane, in columns before this one.
  __host__ __device__ int steps_before(int column, int band) const {
    int sum = 0;
    for (int i = 0; i < column; ++i)
      sum += steps(i, band);
    return sum;
  }
  __host__ __device__ int64_t share_begin(int64_t total, int worker) const {
    return total * worker / workers;
  }
  __host__ __device__ int first_lane(int lane_round) const {
    return static_cast<int>(int64_t{lanes} * lane_round / lane_rounds);
  }
  // Along the order of steps either the worker or the column grows from unit to unit.
  __host__ __device__ int64_t slot(int band, int shift, int lane, int column) const {
    return int64_t{band} * (int64_t{lane_rounds} * workers + int64_t{columns} * lanes) + shift +
           int64_t{lane} * columns + column;
  }
};

} // namespace nsa::kernels
