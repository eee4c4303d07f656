// The rows of nsa-bench model: which are measured, for how long, and their figures.
#pragma once

#include "bench/model/options.h"
#include "bench/model/training.h"
#include "common/base/clock.h"
#include "common/base/json.h"

#include <memory>

namespace nsa::bench {

// Measures all rows of one kind of model; one model is used for all lengths. Every rank makes the
// same steps of the same rows, because rank 0's clock decides for all.
class Rows {
public:
  Rows(const Options& options, runtime::Runtime& runtime, comm::Collectives& collectives,
       std::shared_ptr<const dataset::Dataset> dataset)
      : options_(options), runtime_(runtime), collectives_(collectives),
        dataset_(std::move(dataset)) {}

  // Rank 0 prints each row as soon as it is measured.
  void run(spec::Attention attention, Layers layers);
  int left_out() const { return left_out_; }

private:
  bool agree(bool yes); // returns rank 0's value
  nlohmann::ordered_json measure(const spec::RunSpec& spec, Training& training, Graphs graphs);

  const Options& options_;
  runtime::Runtime& runtime_;
  comm::Collectives& collectives_;
  std::shared_ptr<const dataset::Dataset> dataset_;
  const MonotonicTime begin_ = MonotonicTime::now();
  int left_out_ = 0;
  uint64_t agreements_ = 0;
};

} // namespace nsa::bench
