// Predicts the cost of a run from the run file alone: parameters, memory of a rank part by part,
// disk, tokens and arithmetic. Pure functions. docs/design/estimates.md has the formulas and their
// errors against measurements.
#pragma once

#include "common/base/json.h"
#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"

#include <cstdint>
#include <string_view>

namespace nsa::estimate {

// Scalars, each counted once: the embedding is tied to the output layer.
struct Parameters {
  int64_t embedding = 0, attention = 0, mlp = 0, norms = 0;
  int64_t total() const { return embedding + attention + mlp + norms; }
};
Parameters parameters(const spec::RunSpec& spec);

// How a rank computes; "auto" of the run file is decided where the run is placed.
struct Placement {
  bool gpu = false;
  bool bf16 = false; // compute type; false: FP32
};

// `gpu`: where the ranks will be. `cpuinfo`: /proc/cpuinfo of that machine; with AMX or AVX512-BF16
// "auto" computes in BF16 on a CPU too, as the worker decides.
Placement choose_placement(const spec::RunSpec& spec, bool gpu, std::string_view cpuinfo);

// What computes each part of the model. The GPU is not asked: it counts as one of compute
// capability 9.0.
choice::KernelPlan kernels(const spec::RunSpec& spec, Placement placement);

// Bytes of rank 0 at the peak of a step; the others have no snapshot. On a GPU all but the snapshot
// is device memory.
struct Memory {
  int64_t weights = 0;   // in the compute type; 0 when they are the masters themselves
  int64_t masters = 0;   // FP32; without masters the copy that an update works on
  int64_t moments = 0;   // two of AdamW, FP32
  int64_t gradients = 0; // FP32, reduced in place
  int64_t activations = 0;
  int64_t documents = 0; // packed ones, at most: what their batches are filled up by, their copies
  int64_t logits = 0;    // of one chunk of tokens, and the output layer's gradient
  int64_t collectives = 0; // a bucket on the wire, NCCL's channels
  int64_t heap = 0;        // that a host's allocator holds between steps; 0 on a GPU
  int64_t program = 0;     // libraries, kernels, CUDA context
  int64_t snapshot = 0;    // rank 0's host copy that a checkpoint is written from
  int64_t total() const {
    return weights + masters + moments + gradients + activations + documents + logits +
           collectives + heap + program + snapshot;
  }
};
Memory memory(const spec::RunSpec& spec, Placement placement);

// What the kernels of NSA (attention.kernels = "fused") take beyond whole rows where
// data.document_mask has documents run in batches that are filled up. Lengths are not known before
// the run: at most this, of documents of 64 tokens and more in the mean.
struct DocumentBatches {
  int64_t tokens = 0;    // of a micro-batch, filled up
  int64_t kept = 0;      // bytes that a layer keeps more for its backward pass
  int64_t workspace = 0; // bytes of the backward pass's buffers and of the copies among them
};
DocumentBatches document_batches(const spec::RunSpec& spec);

// Floating-point operations of one update over all ranks, multiply and add counted apart, backward
// twice the forward; recomputation is not counted (it is no progress).
struct Arithmetic {
  double products = 0;  // projections, MLP, output layer
  double attention = 0; // scores and weighted values
  double total() const { return products + attention; }
};
Arithmetic arithmetic(const spec::RunSpec& spec);

// Bytes of one checkpoint, and of all that are kept at a time.
struct Disk {
  int64_t checkpoint = 0, checkpoints_kept = 0;
  int64_t total() const { return checkpoint * checkpoints_kept; }
};
Disk disk(const spec::RunSpec& spec);

// Everything above with totals, as it is stored with a run and printed by `nsactl plan`. A rate
// (tokens a second over all ranks) of an equal run gives the time; 0: none is known, and
// "seconds" is null.
nlohmann::json estimate(const spec::RunSpec& spec, Placement placement,
                        double tokens_per_second = 0);

} // namespace nsa::estimate
