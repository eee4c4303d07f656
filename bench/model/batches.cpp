#include "bench/model/batches.h"

#include "bench/model/failure.h"
#include "worker/data/batch_builder.h"

#include <cmath>

namespace nsa::bench {

namespace {

constexpr int kRandomBatches = 4; // more than there are steps in flight

} // namespace

std::optional<int64_t> separator_of(const spec::RunSpec& spec, const dataset::Dataset* dataset) {
  if (!spec.data.document_mask) return std::nullopt;
  if (dataset == nullptr) return spec.model.vocabulary - 1;
  return dataset->manifest().tokenizer.separator;
}

Batches::Batches(const spec::RunSpec& spec, runtime::Runtime& runtime, Rank rank,
                 const std::shared_ptr<const dataset::Dataset>& dataset)
    : spec_(spec), generator_(1 + static_cast<uint64_t>(rank / spec.parallel.context_ranks)) {
  const auto allocate = [&runtime](size_t bytes) { return runtime.allocate_host(bytes); };
  if (dataset) {
    data::LoaderOptions options;
    options.sources = {{dataset}};
    options.shape = {spec.train.sequence_length, spec.train.micro_batch, spec.train.accumulate,
                     rank / spec.parallel.context_ranks, spec.data_ranks()};
    options.seed = static_cast<uint64_t>(spec.train.seed);
    options.allocate = allocate;
    loader_ = or_die(data::Loader::open(std::move(options)));
    return;
  }
  for (int i = 0; i < kRandomBatches; ++i) {
    auto batch = std::make_shared<data::Batch>(
        data::make_batch(spec.train.micro_batch, spec.train.sequence_length, allocate));
    batch->rows = spec.train.micro_batch;
    fill_at_random(*batch);
    random_.push_back(std::move(batch));
  }
}

// With documents, lengths are 16 to 2,047 tokens, log-uniform: any length and its double bound as
// many documents.
void Batches::fill_at_random(data::Batch& batch) {
  auto* tokens = reinterpret_cast<int64_t*>(batch.memory.get());
  const size_t count = batch.inputs.size() + batch.targets.size();
  const std::optional<int64_t> begins = separator_of(spec_, nullptr);
  const auto vocabulary = uint64_t(begins.value_or(spec_.model.vocabulary));
  std::uniform_real_distribution<double> exponent(4, 11);
  size_t left = 0; // tokens left in the document
  for (size_t t = 0; t < count; ++t) {
    const bool first = begins && left == 0;
    if (first) left = static_cast<size_t>(std::exp2(exponent(generator_)));
    tokens[t] = first ? *begins : static_cast<int64_t>(generator_() % vocabulary);
    if (begins) --left;
  }
}

std::shared_ptr<const data::Batch> Batches::next() {
  if (loader_) return loader_->next();
  return random_[next_++ % random_.size()];
}

} // namespace nsa::bench
