// Computes where each parameter lies in the flat buffers (weights, masters, moments, gradients),
// and which ranges of the gradients are reduced together. With shards it also computes the ranges
// that a rank updates (ZeRO stage 1: Rajbhandari et al., "ZeRO", 2020, section 5.1). It does no
// I/O.
//
// Parameters are in reverse order of their first use in the forward pass. Gradients become ready in
// about this order, so a bucket can be sent while earlier layers are still computed. After the last
// parameter come the sync scalars (loss, requests), which are summed over ranks. They are reduced
// with the last bucket; with shards they have a separate all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nsa::train {

// Elements [begin, end) of the flat buffers.
struct Range {
  size_t begin = 0, end = 0;
  size_t count() const { return end - begin; }
};

// Shard `index` of `of` equal shards of every bucket. A single shard is everything.
struct Shard {
  size_t index = 0, of = 1;
};

struct BucketPlan {
  struct Slot {
    size_t offset = 0, count = 0; // elements
    size_t bucket = 0;
  };
  struct Bucket {
    size_t begin = 0, end = 0; // elements of the gradient buffer
    size_t parameters = 0;
  };
  std::vector<Slot> slots; // by parameter, in the given order
  std::vector<Bucket> buckets;
  size_t parameter_elements = 0; // size of weights, masters and moments, padding included
  size_t sync_begin = 0, sync_count = 0;
  size_t gradient_elements = 0; // parameter_elements plus the sync scalars

  Range parameters_of(size_t bucket) const; // excludes the sync scalars
};

// Every offset is a multiple of this many elements: 64 bytes of FP32, 32 of BF16.
inline constexpr size_t kSlotAlignment = 16;

// `counts` has the elements of each parameter in order of first use. A bucket is full once it holds
// bucket_bytes of FP32 gradients, and has at least one parameter. Its size is a multiple of
// kSlotAlignment * shards elements, so that it can be cut into equal ranges.
BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t sync_count,
                        size_t shards = 1);

// Returns a shard of one bucket's parameters. The plan must have been made for `shard.of` shards.
Range shard_of(const BucketPlan& plan, size_t bucket, Shard shard);

} // namespace nsa::train
