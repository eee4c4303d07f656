#include "worker/rules/bucket_plan.h"

namespace nsa::train {

namespace {
size_t rounded_up(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}
} // namespace

BucketPlan plan_buckets(const std::vector<size_t>& counts, size_t bucket_bytes, size_t sync_count,
                        size_t shards) {
  BucketPlan plan;
  plan.slots.resize(counts.size());
  size_t offset = 0;
  const auto close = [&] {
    offset = rounded_up(offset, kSlotAlignment * shards);
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
  plan.sync_begin = offset;
  plan.sync_count = sync_count;
  plan.gradient_elements = offset + rounded_up(sync_count, kSlotAlignment);
  if (plan.buckets.empty()) plan.buckets.push_back({});
  plan.buckets.back().end = plan.gradient_elements;
  return plan;
}

Range BucketPlan::parameters_of(size_t bucket) const {
  const bool last = bucket + 1 == buckets.size();
  return {buckets[bucket].begin, last ? parameter_elements : buckets[bucket].end};
}

Range shard_of(const BucketPlan& plan, size_t bucket, Shard shard) {
  const Range whole = plan.parameters_of(bucket);
  const size_t count = whole.count() / shard.of;
  return {whole.begin + shard.index * count, whole.begin + (shard.index + 1) * count};
}

} // namespace nsa::train
