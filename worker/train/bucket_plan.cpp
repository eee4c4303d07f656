#include "worker/train/bucket_plan.h"

namespace nsa::train {

namespace {
size_t aligned(size_t count) {
  return (count + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}
} // namespace

BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t tail_count) {
  BucketPlan plan;
  plan.slots.resize(counts.size());
  size_t offset = 0;
  for (size_t i = counts.size(); i-- > 0;) {
    const bool full = !plan.buckets.empty() &&
                      (offset - plan.buckets.back().begin) * sizeof(float) >= bucket_bytes;
    if (plan.buckets.empty() || full) plan.buckets.push_back({offset, offset, 0});
    plan.slots[i] = {offset, counts[i], plan.buckets.size() - 1};
    offset += aligned(counts[i]);
    plan.buckets.back().end = offset;
    ++plan.buckets.back().parameters;
  }
  plan.parameter_elements = offset;
  plan.tail_begin = offset;
  plan.tail_count = tail_count;
  plan.gradient_elements = offset + aligned(tail_count);
  if (plan.buckets.empty()) plan.buckets.push_back({});
  plan.buckets.back().end = plan.gradient_elements;
  return plan;
}

} // namespace nsa::train
