#include "worker/rules/bucket_plan.h"

namespace nsa::train {

namespace {
size_t rounded_up(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}
} // namespace

BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t tail_count,
                        size_t shares) {
  BucketPlan plan;
  plan.slots.resize(counts.size());
  size_t offset = 0;
  const auto close = [&] {
    offset = rounded_up(offset, kSlotAlignment * shares);
    if (!plan.buckets.empty()) plan.buckets.back().end = offset;
  };
  for (size_t i = counts.size(); i-- > 0;) {
    const bool full = !plan.buckets.empty() &&
                      (offset - plan.buckets.back().begin) * sizeof(float) >= bucket_bytes;
    if (full) close();
    if (plan.buckets.empty() || full) plan.buckets.push_back({offset, offset, 0});
    plan.slots[i] = {offset, counts[i], plan.buckets.size() - 1};
    offset += rounded_up(counts[i], kSlotAlignment);
    ++plan.buckets.back().parameters;
  }
  close();
  plan.parameter_elements = offset;
  plan.tail_begin = offset;
  plan.tail_count = tail_count;
  plan.gradient_elements = offset + rounded_up(tail_count, kSlotAlignment);
  if (plan.buckets.empty()) plan.buckets.push_back({});
  plan.buckets.back().end = plan.gradient_elements;
  return plan;
}

Stretch BucketPlan::parameters_of(size_t bucket) const {
  const bool last = bucket + 1 == buckets.size();
  return {buckets[bucket].begin, last ? parameter_elements : buckets[bucket].end};
}

Stretch share_of(const BucketPlan& plan, size_t bucket, Share share) {
  const Stretch whole = plan.parameters_of(bucket);
  const size_t count = whole.count() / share.of;
  return {whole.begin + share.index * count, whole.begin + (share.index + 1) * count};
}

} // namespace nsa::train
