#include "worker/data/batch_builder.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace nsa::data {
namespace {

std::shared_ptr<std::byte> allocate_aligned(size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return {memory, [](std::byte* p) { ::operator delete(p, kAlignment); }};
}

int64_t* first_element(const Batch& batch) {
  return reinterpret_cast<int64_t*>(batch.memory.get());
}

} // namespace

Batch make_batch(int64_t rows, int64_t sequence_length, const AllocateBuffer& allocate) {
  Batch batch;
  batch.sequence_length = sequence_length;
  const auto elements = static_cast<size_t>(rows * sequence_length);
  batch.memory = (allocate ? allocate : allocate_aligned)(2 * elements * sizeof(int64_t));
  batch.inputs = {first_element(batch), elements};
  batch.targets = {first_element(batch) + elements, elements};
  return batch;
}

void fill_batch(const std::vector<Source>& sources, dataset::Split split,
                std::span<const SequenceAddress> addresses, Batch& batch) {
  const auto length = static_cast<size_t>(batch.sequence_length);
  int64_t* input = first_element(batch);
  int64_t* target = input + (batch.targets.data() - batch.inputs.data());
  for (const SequenceAddress& address : addresses) {
    const dataset::TokenSequence& tokens =
        sources[static_cast<size_t>(address.source)].dataset->tokens(split);
    tokens.copy(address.position, std::span(input, length));
    std::copy(input + 1, input + length, target);
    tokens.copy(address.position + batch.sequence_length, std::span(target + length - 1, 1));
    input += length;
    target += length;
  }
  batch.rows = static_cast<int64_t>(addresses.size());
  batch.inputs = {batch.inputs.data(), addresses.size() * length};
  batch.targets = {batch.targets.data(), addresses.size() * length};
  batch.rows_from.assign(addresses.begin(), addresses.end());
}

std::vector<int32_t> document_starts(std::span<const int64_t> row, int64_t separator) {
  std::vector<int32_t> starts = {0};
  for (size_t i = 1; i < row.size(); ++i)
    if (row[i] == separator) starts.push_back(static_cast<int32_t>(i));
  return starts;
}

} // namespace nsa::data
