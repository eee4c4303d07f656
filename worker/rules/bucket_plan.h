// Where each parameter lies in the flat buffers (weights, masters, moments, gradients), which
// stretches of the gradient buffer are reduced together, and which of them a rank updates where
// each updates a share (ZeRO stage 1: Rajbhandari et al., "ZeRO", 2020, section 5.1). Pure.
//
// The order is the reverse of first use in the forward pass, about the order in which gradients are
// ready in the backward pass, so that a bucket can travel while earlier layers are still computed.
// Behind the last parameter lies the tail: a few words (loss, requests) that ranks must agree on
// and that ride along with the last bucket. With shares they follow by themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nsa::train {

// Elements [begin, end) of the flat buffers.
struct Stretch {
  size_t begin = 0, end = 0;
  size_t count() const { return end - begin; }
};

// One of `of` equal shares of every bucket. The only share is the whole.
struct Share {
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
  size_t tail_begin = 0, tail_count = 0;
  size_t gradient_elements = 0; // parameter_elements and the tail

  Stretch parameters_of(size_t bucket) const; // without the tail
};

// Every offset is a multiple of this many elements: 64 bytes of FP32, 32 of BF16.
inline constexpr size_t kSlotAlignment = 16;

// `counts`: elements of each parameter in order of first use. A bucket is closed once it holds
// bucket_bytes of FP32 gradients; at least one parameter each, and room for a multiple of
// kSlotAlignment * shares elements, so that they can be cut into as many equal stretches.
BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t tail_count,
                        size_t shares = 1);

// A share of one bucket's parameters; the plan was made for that many.
Stretch share_of(const BucketPlan& plan, size_t bucket, Share share);

} // namespace nsa::train
