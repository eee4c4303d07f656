// The batches of the measured steps: random tokens, or a data set in the order in which a run's
// ranks read it.
#pragma once

#include "common/dataset/dataset.h"
#include "common/spec/run_spec.h"
#include "worker/data/loader.h"
#include "worker/runtime/runtime.h"

#include <memory>
#include <optional>
#include <random>
#include <vector>

namespace nsa::bench {

// The id that begins a document; std::nullopt without data.document_mask.
std::optional<int64_t> separator_of(const spec::RunSpec& spec, const dataset::Dataset* dataset);

class Batches {
public:
  // Without `dataset` tokens are random and differ between data-parallel ranks. Ranks that share a
  // sequence draw the same ones.
  Batches(const spec::RunSpec& spec, runtime::Runtime& runtime, Rank rank,
          const std::shared_ptr<const dataset::Dataset>& dataset);

  std::shared_ptr<const data::Batch> next();

private:
  void fill_at_random(data::Batch& batch);

  spec::RunSpec spec_;
  std::mt19937_64 generator_;
  std::vector<std::shared_ptr<data::Batch>> random_; // batches are reused in turn
  size_t next_ = 0;
  std::unique_ptr<data::Loader> loader_;
};

} // namespace nsa::bench
