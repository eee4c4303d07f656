#include "common/estimate/estimate.h"

#include "common/estimate/sizes.h"
#include "common/spec/branches.h"
#include "common/spec/kernel_request.h"

#include <algorithm>

namespace nsa::estimate {

namespace {

using spec::RunSpec;

constexpr int64_t kMiB = int64_t{1} << 20;
// Base memory of a training rank without a model. It has the libraries at boot (113 MiB), the first
// step's kernels, and mapped tokens (a loader releases them at 8 MiB).
constexpr int64_t kProgramCpuFp32 = 136 * kMiB, kProgramCpuBf16 = 150 * kMiB;
constexpr int64_t kProgramGpu = 620 * kMiB;
// Copies that the backward pass of the selected branch holds with "aten" on a GPU. It holds them
// for every query row of every (token, block) pair: q, o, their two gradients, and FlashAttention's
// FP32 gradient of q (nsa_model/ops/selected_pairs.cpp). The own block is not a pair.
constexpr int64_t kPairCopies = 6;
// A host's allocator keeps memory freed by one step for the next, but fragmentation wastes a part
// of it.
constexpr double kHeapWaste = 0.35;

// Precision modes sr and pure have BF16 weights only; pure also has BF16 moments.
bool has_masters(const RunSpec& spec) {
  return spec.precision.mode != spec::PrecisionMode::kStochasticRounding &&
         spec.precision.mode != spec::PrecisionMode::kPure;
}
int64_t moment_bytes(const RunSpec& spec) {
  return spec.precision.mode == spec::PrecisionMode::kPure ? 2 : kFp32;
}
// State that a checkpoint stores: masters, or weights without them, and two moments.
int64_t state_bytes(const RunSpec& spec, int64_t count) {
  return count * ((has_masters(spec) ? kFp32 : 2) + 2 * moment_bytes(spec));
}

bool dense(const RunSpec& spec) {
  return spec.model.attention == spec::Attention::kDense;
}

// Number of scalars of one layer's gate and of phi's MLP.
int64_t gate_parameters(const RunSpec& spec) {
  const auto& m = spec.model;
  const int64_t branches = branch_count(spec);
  if (spec.nsa.gate == spec::Gate::kHeadSigmoid)
    return m.dimension * m.head_dimension + m.head_dimension * m.heads * branches;
  const int64_t hidden = m.head_dimension / 2;
  return branches > 1 ? m.head_dimension * hidden + hidden * branches : 0;
}

int64_t compression_parameters(const RunSpec& spec) {
  if (spec.nsa.compression != spec::Compression::kMlp || !has(spec.nsa, spec::Branch::kCompressed))
    return 0;
  const int64_t block = spec.nsa.compression_block * spec.model.head_dimension;
  const int64_t hidden = 2 * spec.model.head_dimension;
  return 2 * (block + block * hidden + hidden * spec.model.head_dimension); // keys and values
}

// Query-key pairs of one sequence, summed over its positions, for each kind of attention.
double causal_pairs(double length) {
  return length * (length + 1) / 2;
}

double window_pairs(double length, double window) {
  return length <= window ? causal_pairs(length)
                          : causal_pairs(window) + (length - window) * window;
}

// Compressed token i ends at position i d + l - 1 and is visible from there on.
double compressed_pairs(double length, double block, double stride) {
  if (length < block) return 0;
  const double count = 1 + static_cast<double>(static_cast<int64_t>((length - block) / stride));
  return count * (length - block + 1) - stride * count * (count - 1) / 2;
}

// A token sees whole blocks, except its own block, of which it sees only the past part.
double selected_pairs(double length, double block, double blocks) {
  const double dense_part = std::min(length, block * blocks);
  const double rest = length - dense_part;
  const double own = (block + 1) / 2; // mean over the positions of a block
  return causal_pairs(dense_part) + rest * ((blocks - 1) * block + own);
}

// Memory that one layer keeps for its backward pass.
struct Activations {
  int64_t per_token = 0, per_layer = 0; // bytes
  int64_t at_the_ends = 0;              // bytes a token, once: embedded tokens, final norm, batches
  int64_t backward = 0; // bytes a token, once: most that a backward pass holds in addition
};

// Number of scalars of the heads that a layer keeps: queries, keys and values.
int64_t kept_heads(const RunSpec& spec, Placement placement, const choice::KernelPlan& kernels) {
  const auto& m = spec.model;
  const int64_t query = m.heads * m.head_dimension, kv = m.kv_groups * m.head_dimension;
  const int64_t sets = dense(spec) ? 1 : branch_count(spec);
  const int64_t projected = query + 2 * sets * kv;
  // Single kernels make every head a separate tensor. ATen operations use views of all projections,
  // which stay in memory beside the rotated queries and keys...
  const bool averaged = !dense(spec) && has(spec.nsa, spec::Branch::kCompressed) &&
                        spec.nsa.compression == spec::Compression::kAverage;
  const int64_t unpooled = averaged ? 2 * kv : 0; // the kernels free these
  if (kernels.fused_layers()) return projected - (kernels.fused_attention() ? unpooled : 0);
  if (!placement.gpu || dense(spec)) return projected + query + sets * kv;
  // ...but the NSA kernels on a GPU need contiguous tensors.
  return projected - unpooled;
}

Activations activations_of_layer(const RunSpec& spec, Placement placement,
                                 const choice::KernelPlan& kernels) {
  const auto& m = spec.model;
  const auto& n = spec.nsa;
  const int64_t compute = placement.bf16 ? 2 : kFp32;
  const int64_t query = m.heads * m.head_dimension, kv = m.kv_groups * m.head_dimension;
  const int64_t sets = dense(spec) ? 1 : branch_count(spec);
  const int64_t projected = query + 2 * sets * kv;
  const bool regrouped = placement.gpu && !dense(spec) && !kernels.fused_attention();
  // On a GPU a norm keeps its input. On a CPU it consists of ATen operations, and keeps an FP32
  // copy and the normalised one.
  const int64_t norm = placement.gpu ? m.dimension * compute + kFp32 : 2 * m.dimension * kFp32;
  // Inputs of the projections and of the MLP; the MLP before and after SiLU (only one of both for
  // many tokens); the output layer's input.
  const bool one_side = kernels.fused_layers() && !serves::keeps_silu(spec.tokens_of_rank());
  int64_t scalars = 2 * m.dimension + (one_side ? 1 : 2) * m.mlp_ratio * m.dimension +
                    kept_heads(spec, placement, kernels) + query;
  Activations a;
  if (dense(spec)) {
    a.per_token = m.heads * kFp32; // log-sum-exp
  } else {
    scalars += sets * query;                // branch outputs
    if (regrouped) scalars += sets * query; // the copy in FlashAttention's order
    if (has(spec.nsa, spec::Branch::kCompressed)) {
      const int64_t overlap = n.compression_block / n.compression_stride;
      const int64_t compressed = 2 * kv / n.compression_stride;
      // A learned phi that reads tokens in place keeps its hidden layer, which is twice as wide.
      // Otherwise copies of the overlapping blocks stay.
      scalars += n.compression != spec::Compression::kMlp ? compressed
                 : kernels.compression_in_place()         ? 3 * compressed
                                                          : 2 * overlap * kv;
    }
    if (has(spec.nsa, spec::Branch::kSelected))
      a.per_token += m.kv_groups * n.selected_blocks * kFp32;
    if (placement.gpu) a.per_token += sets * m.heads * kFp32; // log-sum-exp
    if (n.gate == spec::Gate::kHeadSigmoid) {
      scalars += 2 * m.head_dimension;
      a.per_token += 2 * sets * m.heads * kFp32;
    } else if (sets > 1) {
      scalars += 2 * kv; // mean query, hidden units before and after SiLU
      a.per_token += 2 * sets * m.kv_groups * kFp32;
    }
  }
  a.per_token += 2 * norm + scalars * compute;
  a.per_layer = projected * m.dimension * compute; // the projections are joined into one matrix
  a.at_the_ends = norm + 2 * m.dimension * compute + 3 * 2 * 8; // tokens and targets of three
                                                                // batches
  // One layer's MLP, or its branches in FP32.
  a.backward = std::max(2 * m.mlp_ratio * m.dimension * compute,
                        sets * query * compute + (query + 2 * kv) * 2 * kFp32);
  if (regrouped && has(spec.nsa, spec::Branch::kSelected)) {
    // Only tokens that see more blocks than are selected have pairs.
    const int64_t length = spec.train.sequence_length,
                  later = std::max<int64_t>(0, length - n.selected_blocks * n.selection_block);
    a.backward += kPairCopies * (n.selected_blocks - 1) * query * compute * later /
                  std::max<int64_t>(1, length);
  }
  return a;
}

// Bytes a token and layer that the fused attention kernels keep. These are output, outputs of
// branches, log-sums, selected blocks and the tokens of each block, pooled keys and values.
int64_t attention_results(const RunSpec& spec) {
  const auto& m = spec.model;
  const int64_t query = m.heads * m.head_dimension, kv = m.kv_groups * m.head_dimension;
  const int64_t sets = branch_count(spec);
  return (1 + sets) * query * kBf16 + sets * m.heads * kFp32 +
         2 * m.kv_groups * spec.nsa.selected_blocks * kIndex +
         2 * kv * kBf16 / spec.nsa.compression_stride;
}

// The FP32 buffer, and a single micro-batch's BF16 gradients, which stay apart until the update.
// Activations and logits, the `freed` bytes, are no longer there by then.
int64_t gradient_bytes(const RunSpec& spec, Placement placement, int64_t count, int64_t freed) {
  const bool apart =
      placement.gpu && placement.bf16 && spec.parallel.ranks == 1 && spec.train.accumulate == 1;
  return count * kFp32 + (apart ? std::max<int64_t>(0, count * kBf16 - freed) : 0);
}

} // namespace

Parameters parameters(const RunSpec& spec) {
  const auto& m = spec.model;
  const int64_t query = m.heads * m.head_dimension, kv = m.kv_groups * m.head_dimension;
  int64_t attention = 2 * m.dimension * query; // queries, output
  if (dense(spec))
    attention += 2 * m.dimension * kv;
  else
    attention += branch_count(spec) * 2 * m.dimension * kv + gate_parameters(spec) +
                 compression_parameters(spec);
  Parameters p;
  p.embedding = m.vocabulary * m.dimension;
  p.attention = m.layers * attention;
  p.mlp = m.layers * 2 * m.dimension * m.mlp_ratio * m.dimension;
  p.norms = m.layers * 2 * m.dimension + m.dimension;
  return p;
}

Placement choose_placement(const RunSpec& spec, bool gpu, std::string_view cpuinfo) {
  const bool fast_bf16 = gpu || cpuinfo.find("amx_bf16") != std::string_view::npos ||
                         cpuinfo.find("avx512_bf16") != std::string_view::npos;
  const spec::Compute compute = spec.precision.compute;
  const bool asked =
      compute == spec::Compute::kBf16 || (compute == spec::Compute::kAuto && fast_bf16);
  return {gpu, !has_masters(spec) || (spec.precision.mode != spec::PrecisionMode::kFp32 && asked)};
}

choice::KernelPlan kernels(const RunSpec& spec, Placement placement) {
  return spec::plan_kernels(spec, placement.gpu, placement.bf16);
}

Memory memory(const RunSpec& spec, Placement placement) {
  const auto& m = spec.model;
  const int64_t count = parameters(spec).total();
  const int64_t compute = placement.bf16 ? 2 : kFp32;
  const int64_t tokens = spec.tokens_of_rank();
  Memory out;
  out.weights = placement.bf16 ? count * compute : 0; // in FP32 the masters are the weights
  // Without masters, a part of the weights at a time is converted to FP32 (or its gradients to
  // BF16).
  const int64_t part = std::max(int64_t{1} << 24, m.vocabulary * m.dimension);
  out.masters = has_masters(spec)
                    ? count * kFp32
                    : std::min(part, count) *
                          (spec.precision.mode == spec::PrecisionMode::kStochasticRounding ? 4 : 2);
  out.moments = 2 * count * moment_bytes(spec);

  const choice::KernelPlan plan = kernels(spec, placement);
  const Activations kept = activations_of_layer(spec, placement, plan);
  out.activations = tokens * kept.at_the_ends;
  if (spec.train.activation_recompute) {
    // The layer that is recomputed. On a CPU its gradients take as much again; a GPU's kernels free
    // them early.
    const int64_t layers = placement.gpu ? 1 : std::min<int64_t>(2, m.layers);
    out.activations += layers * (tokens * kept.per_token + kept.per_layer) +
                       m.layers * tokens * m.dimension * compute;
    if (!spec.train.recompute_attention && plan.fused_attention())
      out.activations += (m.layers - layers) * tokens * attention_results(spec);
  } else {
    out.activations += m.layers * (tokens * kept.per_token + kept.per_layer);
  }

  // A fused chunk has BF16 logits only; otherwise there are FP32 logits, too.
  const bool fused = plan.fused_layers();
  const int64_t chunk = std::min(tokens, serves::loss_chunk(placement.gpu, fused, m.vocabulary));
  const int64_t chunk_bytes = chunk * m.vocabulary * (fused ? compute : kFp32 + 2 * compute);
  out.logits =
      chunk_bytes + m.vocabulary * m.dimension * (kFp32 + compute) + tokens * m.dimension * compute;
  if (const auto* loss = plan.find(choice::Part::kLoss);
      loss && loss->backend == choice::Backend::kSm90)
    out.logits += chunk * m.dimension * (kFp32 + compute); // the rows' gradient, the scaled rows
  // A GPU's allocator reuses the logits' memory in the backward pass, which comes later.
  const int64_t backward = tokens * kept.backward;
  const int64_t beyond_logits = std::max<int64_t>(0, backward - chunk_bytes);
  if (spec.data.document_mask && !dense(spec) && plan.fused_attention()) {
    const DocumentBatches batches = document_batches(spec);
    // In a context group each rank has only a part of the heads.
    const int64_t shared = spec.parallel.context_ranks;
    out.documents = (spec.train.activation_recompute ? 1 : m.layers) * batches.kept / shared +
                    std::max<int64_t>(0, batches.workspace / shared - chunk_bytes - beyond_logits);
  }
  if (placement.gpu)
    out.activations += beyond_logits;
  else if (!spec.train.activation_recompute)
    out.activations += backward;
  out.gradients = gradient_bytes(spec, placement, count, out.activations + chunk_bytes);
  if (spec.parallel.ranks > 1) {
    const auto bucket = static_cast<int64_t>(spec.parallel.bucket_mib * double(kMiB));
    const int64_t largest = std::min(bucket, count * kFp32);
    // NCCL reduces in place and has its own buffers. A CPU has one bucket in reduction and one in
    // gathering.
    out.collectives =
        placement.gpu
            ? 256 * kMiB + (spec.parallel.compress == spec::Compress::kOff ? 0 : largest / 2)
            : 2 * largest;
    // The buffers with which an exchange sends and receives a layer's heads.
    const int64_t sets = dense(spec) ? 1 : branch_count(spec);
    if (spec.parallel.context_ranks > 1)
      out.collectives +=
          2 * tokens * (m.heads + 2 * sets * m.kv_groups) * m.head_dimension * compute;
  }
  if (placement.gpu) {
    out.program = kProgramGpu;
  } else {
    out.program = placement.bf16 ? kProgramCpuBf16 : kProgramCpuFp32;
    out.heap = static_cast<int64_t>(kHeapWaste * double(out.activations + out.logits));
  }
  const bool checkpoints = spec.checkpoint.interval_steps > 0 || spec.checkpoint.at_end;
  out.snapshot = checkpoints ? state_bytes(spec, count) : 0;
  return out;
}

Arithmetic arithmetic(const RunSpec& spec) {
  const auto& m = spec.model;
  const auto& n = spec.nsa;
  const Parameters p = parameters(spec);
  const double length = static_cast<double>(spec.train.sequence_length);
  const double sequences = static_cast<double>(spec.sequences_per_step());
  // Every matrix multiplies every token once; the embedding does so only as output layer. phi's MLP
  // multiplies blocks, not tokens, but is small enough to be counted alike.
  const double weights = static_cast<double>(p.embedding + p.attention + p.mlp);
  double pairs = 0; // each with the products q.k and p.v
  if (dense(spec)) {
    pairs = causal_pairs(length);
  } else {
    if (has(spec.nsa, spec::Branch::kCompressed))
      pairs += compressed_pairs(length, double(n.compression_block), double(n.compression_stride));
    if (has(spec.nsa, spec::Branch::kSelected))
      pairs += selected_pairs(length, double(n.selection_block), double(n.selected_blocks));
    if (has(spec.nsa, spec::Branch::kSliding)) pairs += window_pairs(length, double(n.window));
  }
  Arithmetic out;
  constexpr double kForwardAndBackward = 3;
  out.products = kForwardAndBackward * 2 * weights * length * sequences;
  out.attention = kForwardAndBackward * 4 * static_cast<double>(m.heads * m.head_dimension) *
                  pairs * static_cast<double>(m.layers) * sequences;
  return out;
}

Disk disk(const RunSpec& spec) {
  const auto& c = spec.checkpoint;
  Disk out;
  const bool any = c.interval_steps > 0 || c.at_end;
  if (!any) return out;
  out.checkpoint = state_bytes(spec, parameters(spec).total());
  const int64_t interval = std::max<int64_t>(1, c.interval_steps);
  const int64_t written = c.interval_steps > 0 ? (spec.train.steps + interval - 1) / interval : 1;
  int64_t kept = std::min(c.keep_last, written);
  if (c.keep_every_steps > 0) kept += spec.train.steps / c.keep_every_steps;
  out.checkpoints_kept = kept + 1; // the one that is being written
  return out;
}

namespace {

nlohmann::json kernels_json(const choice::KernelPlan& plan) {
  nlohmann::json parts = nlohmann::json::array();
  for (const choice::PlannedKernel& kernel : plan.kernels)
    parts.push_back({{"part", choice::part_name(kernel.part)},
                     {"backend", choice::backend_name(kernel.backend)},
                     {"reason", kernel.reason},
                     {"falls_back", kernel.falls_back}});
  return parts;
}

} // namespace

nlohmann::json estimate(const RunSpec& spec, Placement placement, double tokens_per_second) {
  const Parameters p = parameters(spec);
  const Memory m = memory(spec, placement);
  const Arithmetic a = arithmetic(spec);
  const Disk d = disk(spec);
  const double tokens = double(spec.tokens_per_step()) * double(spec.train.steps);
  nlohmann::json out = {
      {"parameters",
       {{"embedding", p.embedding},
        {"attention", p.attention},
        {"mlp", p.mlp},
        {"norms", p.norms},
        {"total", p.total()}}},
      {"placement",
       {{"device", placement.gpu ? "cuda" : "cpu"},
        {"compute", placement.bf16 ? "bf16" : "fp32"},
        {"ranks", spec.parallel.ranks}}},
      {"kernels", kernels_json(kernels(spec, placement))},
      {"memory_bytes",
       {{"weights", m.weights},
        {"masters", m.masters},
        {"moments", m.moments},
        {"gradients", m.gradients},
        {"activations", m.activations},
        {"documents", m.documents},
        {"logits", m.logits},
        {"collectives", m.collectives},
        {"heap", m.heap},
        {"program", m.program},
        {"snapshot", m.snapshot},
        {"on_gpu", placement.gpu ? m.total() - m.snapshot : 0},
        {"gpu_tensors", placement.gpu ? m.total() - m.snapshot - m.program - m.collectives : 0},
        {"total", m.total()}}},
      {"disk_bytes",
       {{"checkpoint", d.checkpoint},
        {"checkpoints_kept", d.checkpoints_kept},
        {"total", d.total()}}},
      {"tokens", {{"step", spec.tokens_per_step()}, {"total", tokens}}},
      {"flops_per_step",
       {{"products", a.products}, {"attention", a.attention}, {"total", a.total()}}},
      {"tokens_per_second", nullptr},
      {"seconds", nullptr},
      {"money", nullptr},
  };
  if (tokens_per_second > 0) {
    out["tokens_per_second"] = tokens_per_second;
    out["seconds"] = tokens / tokens_per_second;
    const double hours = tokens / tokens_per_second / 3600;
    if (spec.cost.per_gpu_hour > 0)
      out["money"] = {{"hours", hours},
                      {"per_gpu_hour", spec.cost.per_gpu_hour},
                      {"total", hours * double(spec.parallel.ranks) * spec.cost.per_gpu_hour}};
  }
  return out;
}

} // namespace nsa::estimate
