// Says where each parameter lies in the flat buffers (weights, masters, moments, gradients), and
// which ranges of the gradients are reduced together. With shards it says which of them a rank
// updates (ZeRO stage 1: Rajbhandari et al., "ZeRO", 2020, section 5.1). Pure.
//
// Parameters stand in reverse order of their first use in the forward pass. Gradients are ready in
// about this order, so a bucket can be sent while earlier layers are still computed. After the last
// parameter come the sync scalars (loss, requests), on which ranks must agree. They are reduced
// with the last bucket; with shards they have an all-reduce of their own.
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

// One of `of` equal shards of every bucket. The only shard is the whole.
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
  std::vector<Slot> slots; // by parameter, in the order given
  std::vector<Bucket> buckets;
  size_t parameter_elements = 0; // padding included: size of weights, masters and moments
  size_t sync_begin = 0, sync_count = 0;
  size_t gradient_elements = 0; // parameter_elements and the sync scalars

  Range parameters_of(size_t bucket) const; // without the sync scalars
};

// Every offset is a multiple of this many elements: 64 bytes of FP32, 32 of BF16.
inline constexpr size_t kSlotAlignment = 16;

// `counts`: elements of each parameter in order of first use. A bucket is closed once it holds
// bucket_bytes of FP32 gradients; at least one parameter each, and room for a multiple of
// kSlotAlignment * shards elements, so that they can be cut into as many equal ranges.
BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t sync_count,
                        size_t shards = 1);

// A shard of one bucket's parameters; the plan was made for that many.
Range shard_of(const BucketPlan& plan, size_t bucket, Shard shard);

} // namespace nsa::train
