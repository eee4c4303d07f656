// Predicts the cost of a run from the run file alone: parameters, memory of a rank by part, disk,
// tokens and arithmetic. Pure functions. docs/design/estimates.md has the formulas and their errors
// against measurements.
#pragma once

#include "common/base/json.h"
#include "common/spec/run_spec.h"
#include "nsa_model/choice/kernel_plan.h"

#include <cstdint>
#include <string_view>

namespace nsa::estimate {

// Numbers of scalars. The embedding is tied to the output layer and counts once.
struct Parameters {
  int64_t embedding = 0, attention = 0, mlp = 0, norms = 0;
  int64_t total() const { return embedding + attention + mlp + norms; }
};
Parameters parameters(const spec::RunSpec& spec);

// How a rank computes. It resolves "auto" of the run file for the machine of the run.
struct Placement {
  bool gpu = false;
  bool bf16 = false; // compute type; false: FP32
};

// `gpu` says whether the ranks run on GPUs. `cpuinfo` is /proc/cpuinfo of that machine. With AMX or
// AVX512-BF16, "auto" computes in BF16 on a CPU, too, as in the worker.
Placement choose_placement(const spec::RunSpec& spec, bool gpu, std::string_view cpuinfo);

// Returns the kernel of each part of the model. It does not query the GPU, and assumes compute
// capability 9.0.
choice::KernelPlan kernels(const spec::RunSpec& spec, Placement placement);

// Bytes of rank 0 at the peak of a step; other ranks have no snapshot. On a GPU everything except
// the snapshot is device memory.
struct Memory {
  int64_t weights = 0;   // in the compute type; 0 if the masters are the weights
  int64_t masters = 0;   // FP32; without masters, the copy that an update works on
  int64_t moments = 0;   // the two of AdamW, FP32
  int64_t gradients = 0; // an FP32 buffer, reduced in place, and BF16 gradients that stay apart
  int64_t activations = 0;
  int64_t documents = 0;   // packed documents, upper bound: padding of their batches, and their
                           // copies
  int64_t logits = 0;      // logits of one chunk of tokens, and the output layer's gradient
  int64_t collectives = 0; // buckets in collectives, NCCL's channels
  int64_t heap = 0;        // free memory that a host's allocator keeps between steps; 0 on a GPU
  int64_t program = 0;     // libraries, kernels, CUDA context
  int64_t snapshot = 0;    // rank 0's host copy from which a checkpoint is written
  int64_t total() const {
    return weights + masters + moments + gradients + activations + documents + logits +
           collectives + heap + program + snapshot;
  }
};
Memory memory(const spec::RunSpec& spec, Placement placement);

// Additional memory of the NSA kernels (attention.kernels = "fused") if data.document_mask packs
// documents into padded batches. Lengths are unknown before the run, so this is an upper bound for
// documents of 64 tokens or more on average.
struct DocumentBatches {
  int64_t tokens = 0;    // tokens of a micro-batch, padding included
  int64_t kept = 0;      // additional bytes that a layer keeps for its backward pass
  int64_t workspace = 0; // bytes of the larger pass's buffers and copies
};
DocumentBatches document_batches(const spec::RunSpec& spec);

// Floating-point operations of one update over all ranks. A multiply and an add count as two;
// backward counts twice the forward. Recomputation does not count, because it makes no progress.
struct Arithmetic {
  double products = 0;  // projections, MLP, output layer
  double attention = 0; // scores and weighted values
  double total() const { return products + attention; }
};
Arithmetic arithmetic(const spec::RunSpec& spec);

// Bytes of one checkpoint, and the number of checkpoints that exist at the same time.
struct Disk {
  int64_t checkpoint = 0, checkpoints_kept = 0;
  int64_t total() const { return checkpoint * checkpoints_kept; }
};
Disk disk(const spec::RunSpec& spec);

// Returns all of the above with totals; nsad stores it with a run and `nsactl plan` prints it. The
// time follows from the rate (tokens a second over all ranks) of a run with equal settings. 0 means
// unknown, and "seconds" is null.
nlohmann::json estimate(const spec::RunSpec& spec, Placement placement,
                        double tokens_per_second = 0);

} // namespace nsa::estimate
