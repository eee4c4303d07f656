#include "worker/data/sample_order.h"

#include "worker/data/permutation.h"

namespace nsa::data {

int64_t sample_count(int64_t tokens, int64_t sequence_length) {
  return tokens < 1 ? 0 : (tokens - 1) / sequence_length;
}

Status check(const BatchShape& shape) {
  auto wrong = [](const char* field, int64_t value, const char* range) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(field) + " is " + std::to_string(value) + ", expected " + range);
  };
  if (shape.sequence_length < 1)
    return wrong("sequence_length", shape.sequence_length, "at least 1");
  if (shape.micro_batch < 1) return wrong("micro_batch", shape.micro_batch, "at least 1");
  if (shape.accumulate < 1) return wrong("accumulate", shape.accumulate, "at least 1");
  if (shape.world < 1) return wrong("world", shape.world, "at least 1");
  if (shape.rank < 0 || shape.rank >= shape.world)
    return wrong("rank", shape.rank, "0 up to world - 1");
  return {};
}

int64_t place_in_step(const BatchShape& shape, int64_t micro_step, int64_t row) {
  return (micro_step * shape.world + shape.rank) * shape.micro_batch + row;
}

SequenceAddress SampleOrder::at(int64_t sequence) const {
  const int64_t epoch = sequence / samples_;
  const int64_t sample = Permutation(samples_, seed_, epoch)(sequence % samples_);
  return {sequence, epoch, sample, sample * sequence_length_};
}

} // namespace nsa::data
