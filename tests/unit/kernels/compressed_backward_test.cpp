// The compressed branch's backward in one kernel: the division into launches, and the scales of dQ.
#include "nsa_model/kernels/compressed_backward/compressed_backward.h"

#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/compressed_backward/query_scale.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

namespace nsa::kernels {
namespace {

// The launches of the compressed branch's backward cover all bands once. Their buffers do not grow
// with the tokens, but for the columns' results.
TEST(CompressedBackward, LaunchesCoverTheSequenceInSmallBuffers) {
  for (const int sequence : {32, 2300, 17000, 65536, 131072, 131073, 200001, 262144, 1048576}) {
    for (const auto& [batch, groups] : {std::pair{1, 1}, {1, 2}, {2, 2}, {6, 1}, {1, 16}}) {
      const AttentionShape shape = {batch, sequence, groups};
      const RangeUnits units(KeyRange::kCompressed, 0, sequence, batch * groups, 132, 8192);
      const int launches = compressed_backward_launches(shape, 132);
      int token = 0, band = 0;
      for (int launch = 0; launch < launches; ++launch) {
        const RangeBands bands = compressed_backward_bands(shape, launch, 132);
        const TokenRange tokens = compressed_backward_tokens(shape, launch, 132);
        EXPECT_EQ(bands.first, band);
        EXPECT_EQ(tokens.first, token);
        EXPECT_GT(bands.count, 0);
        EXPECT_EQ(tokens.first % 16, 0);
        EXPECT_LE(int64_t{tokens.past - tokens.first} * batch * groups * 6 * 64,
                  compressed_backward_sums(shape, 132));
        band += bands.count;
        token = tokens.past;
      }
      EXPECT_EQ(band, units.bands);
      EXPECT_EQ(token, sequence);
      const int64_t most = 393216 + int64_t{2 * 8192 + 16} * batch * groups; // rows of a launch
      EXPECT_LE(compressed_backward_sums(shape, 132), most * 6 * 64) << sequence;
    }
  }
}

// The units of some bands after those of others are all units of a column.
TEST(CompressedBackward, ReductionsOfBandsFindEveryUnitOnce) {
  for (const auto& [sequence, kv_heads] : {std::pair{34000, 1}, {70001, 2}, {140000, 2}}) {
    const RangeUnits units(KeyRange::kCompressed, 0, sequence, kv_heads, 132, 8192);
    ASSERT_GT(units.bands, 3);
    for (int column = 0; column < units.columns; ++column) {
      std::vector<int64_t> all, found;
      units.for_units_of(kv_heads - 1, column, [&](int64_t slot) { all.push_back(slot); });
      for (int band = 0; band < units.bands; band += 3) {
        const RangeBands some = {8192, band, std::min(3, units.bands - band)};
        const std::size_t before = found.size();
        units.for_units_of(
            kv_heads - 1, column,
            [&](int64_t slot) {
              EXPECT_GE(slot, band * units.band_slots());
              EXPECT_LT(slot, (band + some.count) * units.band_slots());
              found.push_back(slot);
            },
            some);
        EXPECT_LE(found.size() - before, std::size_t(units.most_units_of_a_column(some)));
      }
      EXPECT_EQ(found, all);
    }
  }
}

TEST(CompressedBackward, ScalesLeaveRoomForTheSum) {
  using compressed_backward::query_scale;
  for (const double bound : {0.0, 1e-320, 1e-100, 1e-38, 1e-20, 0.3, 1.0, 1.5, 2.0, 1e10, 1e35}) {
    const double scale = double(query_scale(bound));
    EXPECT_LT(bound * scale, 1 << 29) << bound;
    EXPECT_TRUE(std::isnormal(scale) && std::isnormal(0.125f / float(scale))) << bound;
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5) << bound;
    if (bound > 1e-20 && bound < 1e30) {
      EXPECT_GE(bound * scale, 1 << 28) << bound;
    }
  }
  EXPECT_TRUE(std::isnan(query_scale(double(INFINITY))));
  EXPECT_TRUE(std::isnan(query_scale(double(NAN))));
}

} // namespace
} // namespace nsa::kernels
