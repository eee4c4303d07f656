#include "bench/kernels/layer_times.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "bench/kernel_cases/measure.h"
#include "bench/kernel_cases/text_ids.h"
#include "bench/kernels/timing.h"
#include "bench/kernels/vocabulary_times.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/embedding_gradient/embedding_gradient.h"
#include "nsa_model/kernels/group_gate/group_gate.h"
#include "nsa_model/kernels/head_split/head_split.h"
#include "nsa_model/kernels/learned_compression/learned_compression.h"
#include "nsa_model/kernels/rms_norm/rms_norm.h"
#include "nsa_model/kernels/silu_product/silu_product.h"
#include "nsa_model/kernels/update/update.h"

namespace nsa::kernels::check {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWidth = 768; // model dimension of the M7C 125M
constexpr int kRepeats = 20;
using Tensors = std::vector<DeviceBuffer<Bf16>>;

DeviceBuffer<Bf16> normal(std::size_t count, float deviation, uint64_t seed) {
  DeviceBuffer<Bf16> tensor(count);
  fill_normal(tensor.get(), count, deviation, seed);
  return tensor;
}
template <typename T> DeviceBuffer<T> filled(std::size_t count, T value) {
  DeviceBuffer<T> tensor(count);
  tensor.from_host(std::vector<T>(count, value));
  return tensor;
}

// Prints a time and the rate of moving `bytes` in it.
void print_rate(const char* what, const Timing& time, double bytes) {
  std::printf("  %-24s %8.1f us (%.1f-%.1f)  %5.2f TB/s\n", what, 1e3 * time.median, 1e3 * time.low,
              1e3 * time.high, bytes / (time.median * 1e9));
}

// `rows` are nine tensors of 2 x tokens x kWidth. `pass` is the size of half a tensor in bytes.
void time_norm(int tokens, const Tensors& rows) {
  const double pass = 2.0 * static_cast<double>(tokens) * kWidth;
  const DeviceBuffer<Bf16> gain = normal(kWidth, 0.2f, 300);
  DeviceBuffer<float> inverse(tokens), partial(rms_norm_partials(kWidth));
  DeviceBuffer<Bf16> d_gain(kWidth);
  AddRmsNormParams norm{};
  norm.rows = tokens;
  norm.columns = kWidth;
  norm.epsilon = 1e-6f;
  norm.x = rows[0].get();
  norm.addend = rows[1].get();
  norm.gain = gain.get();
  norm.sum = rows[2].get();
  norm.normed = rows[3].get();
  norm.inverse = inverse.get();
  print_rate("norm",
             time_of([&] { cuda_check(launch_add_rms_norm(norm, nullptr), "norm"); }, kRepeats),
             4 * pass);
  AddRmsNormBackwardParams back{};
  back.rows = tokens;
  back.columns = kWidth;
  back.d_normed = rows[4].get();
  back.d_sum = rows[5].get();
  back.sum = rows[2].get();
  back.inverse = inverse.get();
  back.gain = gain.get();
  back.d_x = rows[6].get();
  back.partial = partial.get();
  back.d_gain = d_gain.get();
  print_rate(
      "norm backward",
      time_of([&] { cuda_check(launch_add_rms_norm_backward(back, nullptr), "norm"); }, kRepeats),
      4 * pass);
}

void time_head_split(int tokens, const Tensors& rows) {
  const double pass = 2.0 * static_cast<double>(tokens) * kWidth;
  const DeviceBuffer<float> table = filled(2048 * 32, 0.5f);
  HeadSplitParams split{};
  split.layout = {tokens, 2048, 12, 2, 64, 6, 3, false, table.get(), table.get()};
  split.joined = rows[0].get();
  split.q = rows[1].get();
  split.mean = rows[2].get();
  HeadSplitBackwardParams join{};
  join.layout = split.layout;
  join.d_joined = rows[0].get();
  join.d_q = rows[1].get();
  join.d_mean = rows[2].get();
  for (int set = 0; set < 6; ++set)
    join.d_set[set] = split.set[set] = rows[3 + set].get();
  print_rate("head split",
             time_of([&] { cuda_check(launch_head_split(split, nullptr), "split"); }, kRepeats),
             4.17 * pass);
  print_rate(
      "head split backward",
      time_of([&] { cuda_check(launch_head_split_backward(join, nullptr), "join"); }, kRepeats),
      4.17 * pass);
}

void time_silu_product(int tokens, const Tensors& rows) {
  constexpr int kMlpWidth = 4 * kWidth;
  const std::size_t mlp_count = static_cast<std::size_t>(tokens) * kMlpWidth;
  Tensors wide;
  for (uint64_t i = 0; i < 4; ++i)
    wide.push_back(normal(mlp_count, 1.0f, 200 + i));
  const DeviceBuffer<Bf16> weight =
      normal(static_cast<std::size_t>(kMlpWidth) * kWidth, 0.03f, 210);
  const SiluProductParams product{tokens,       kMlpWidth,     kWidth,       rows[0].get(),
                                  weight.get(), wide[0].get(), wide[1].get()};
  const SiluProductBackwardParams product_back{
      tokens, kMlpWidth, kWidth, rows[1].get(), weight.get(), wide[0].get(), wide[2].get()};
  const double flop = 2.0 * static_cast<double>(mlp_count) * kWidth;
  const auto product_line = [&](const char* what, const Timing& t) {
    std::printf("  %-24s %8.1f us (%.1f-%.1f)  %5.0f TFLOP/s\n", what, 1e3 * t.median, 1e3 * t.low,
                1e3 * t.high, flop / (t.median * 1e9));
  };
  product_line(
      "product with SiLU",
      time_of([&] { cuda_check(launch_silu_product(product, nullptr), "product"); }, kRepeats));
  product_line(
      "product with SiLU, back",
      time_of([&] { cuda_check(launch_silu_product_backward(product_back, nullptr), "product"); },
              kRepeats));
  SiluProductBackwardParams with_after = product_back;
  with_after.after = wide[3].get();
  product_line(
      "the same, with silu again",
      time_of([&] { cuda_check(launch_silu_product_backward(with_after, nullptr), "product"); },
              kRepeats));
}

void time_gates(int tokens, const Tensors& rows) {
  const DeviceBuffer<Bf16> fc1 = normal(kGateHidden * kGateWidth, 0.125f, 301);
  const DeviceBuffer<Bf16> fc2 = normal(kGateBranches * kGateHidden, 0.5f, 302);
  const std::size_t gate_count = static_cast<std::size_t>(tokens) * 12 * kGateBranches;
  const DeviceBuffer<float> gates = filled(gate_count, 0.3f);
  DeviceBuffer<float> gate_partial(group_gate_partials());
  DeviceBuffer<Bf16> d_fc1(fc1.size()), d_fc2(fc2.size());
  GroupGateParams gate{};
  gate.rows = int64_t{tokens} * 2;
  gate.heads = 6;
  gate.mean = rows[0].get();
  gate.fc1 = fc1.get();
  gate.fc2 = fc2.get();
  gate.gates = gates.get();
  GroupGateBackwardParams gate_back{};
  gate_back.rows = gate.rows;
  gate_back.heads = gate.heads;
  gate_back.d_gates = gates.get();
  gate_back.gates = gates.get();
  gate_back.mean = gate.mean;
  gate_back.fc1 = gate.fc1;
  gate_back.fc2 = gate.fc2;
  gate_back.partial = gate_partial.get();
  gate_back.d_mean = rows[1].get();
  gate_back.d_fc1 = d_fc1.get();
  gate_back.d_fc2 = d_fc2.get();
  const double gate_bytes = 4.0 * static_cast<double>(gate_count);
  const double mean_bytes = 2.0 * static_cast<double>(gate.rows) * kGateWidth;
  print_rate("gates",
             time_of([&] { cuda_check(launch_group_gate(gate, nullptr), "gate"); }, kRepeats),
             mean_bytes + gate_bytes);
  print_rate("gates backward",
             time_of([&] { cuda_check(launch_group_gate_backward(gate_back, nullptr), "gate"); },
                     kRepeats),
             2 * mean_bytes + 1.2 * gate_bytes);
}

// Times a learned phi of keys and values with sequences of 4,096 tokens.
void time_learned_compression(int tokens, const Tensors& rows) {
  AttentionShape shape{};
  shape.sequence = tokens < 4096 ? tokens : 4096;
  shape.batch = tokens / shape.sequence;
  shape.groups = 2;
  constexpr std::size_t kBlock = std::size_t{kCompressLength} * kHeadDim;
  const std::size_t angles =
      static_cast<std::size_t>(compressed_count(shape.sequence)) * kHeadDim / 2;
  const auto cosine = filled(angles, 0.8f), sine = filled(angles, 0.6f);
  DeviceBuffer<float> bias(2 * kCompressionHidden);
  DeviceBuffer<uint8_t> workspace(learned_compression_workspace(shape));
  LearnedCompressionParams forward{};
  LearnedCompressionBackwardParams backward{};
  forward.shape = backward.shape = shape;
  forward.cos = backward.cos = cosine.get();
  forward.sin = backward.sin = sine.get();
  forward.bias = bias.get();
  backward.workspace = workspace.get();
  Tensors weights; // keys and values use the same weights
  weights.push_back(normal(kBlock, 0.02f, 310));
  weights.push_back(normal(kCompressionHidden * kBlock, 0.02f, 311));
  weights.push_back(normal(std::size_t{kCompressionHidden} * kHeadDim, 0.2f, 312));
  Tensors gradients;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t first = gradients.size();
    for (const DeviceBuffer<Bf16>& weight : weights)
      gradients.emplace_back(weight.size());
    forward.side[i] = {rows[i].get(),    weights[0].get(),  weights[1].get(),
                       weights[2].get(), rows[2 + i].get(), rows[4 + i].get()};
    backward.side[i] = {rows[i].get(),
                        weights[0].get(),
                        weights[1].get(),
                        weights[2].get(),
                        rows[2 + i].get(),
                        rows[i].get(),
                        rows[6 + i].get(),
                        gradients[first].get(),
                        gradients[first + 1].get(),
                        gradients[first + 2].get()};
  }
  const double bytes = 2.0 * 2.0 * static_cast<double>(tokens) * shape.groups * kHeadDim;
  print_rate(
      "learned compression",
      time_of([&] { cuda_check(launch_learned_compression(forward, nullptr), "phi"); }, kRepeats),
      bytes);
  print_rate(
      "learned compression back",
      time_of([&] { cuda_check(launch_learned_compression_backward(backward, nullptr), "phi"); },
              kRepeats),
      2 * bytes);
}

void time_cross_entropy() {
  constexpr int kVocabulary = 50304, kChunk = 8192;
  DeviceBuffer<Bf16> logits(static_cast<std::size_t>(kChunk) * kVocabulary);
  // Each run leaves its gradients as input of the next.
  fill_normal(logits.get(), logits.size(), 2.0f, 99);
  const auto labels = filled<int64_t>(kChunk, 17);
  const auto weight = filled(kChunk, 1.0f / kChunk);
  DeviceBuffer<float> loss(kChunk);
  CrossEntropyParams entropy{};
  entropy.rows = kChunk;
  entropy.columns = kVocabulary;
  entropy.logits = logits.get();
  entropy.labels = labels.get();
  entropy.weight = weight.get();
  entropy.loss = loss.get();
  entropy.gradient = true;
  print_rate("cross-entropy of 8,192",
             time_of([&] { cuda_check(launch_cross_entropy(entropy, nullptr), "loss"); }, kRepeats),
             4.0 * static_cast<double>(logits.size()));
}

constexpr std::size_t kCount = 116'535'168; // of parameters
constexpr UpdateScalars kScalars{1e-3, 0.9, 0.95, 0.1, 1e-8, 1.0};

template <class T> DeviceBuffer<T> zeros(std::size_t count) {
  DeviceBuffer<T> buffer(count);
  cuda_check(cudaMemset(buffer.get(), 0, count * sizeof(T)), "cudaMemset");
  return buffer;
}

// What AdamW changes, and what it reads beside the gradients.
struct UpdateState {
  DeviceBuffer<float> values = zeros<float>(kCount), first = zeros<float>(kCount),
                      second = zeros<float>(kCount);
  DeviceBuffer<Bf16> weights = zeros<Bf16>(kCount);
  DeviceBuffer<uint8_t> decayed = DeviceBuffer<uint8_t>(kCount / kSlotElements); // not 0: all decay
  DeviceBuffer<float> updates = filled(1, 1.0f);
  DeviceBuffer<UpdateControl> control = filled(1, UpdateControl{1.0f, 1.0f, 1.0f, 1e-3f, 1.0f, {}});

  AdamWParams params() const {
    AdamWParams params{};
    params.count = kCount;
    params.values = values.get();
    params.first_moments = first.get();
    params.second_moments = second.get();
    params.weights = weights.get();
    params.decayed = decayed.get();
    params.updates = updates.get();
    params.control = control.get();
    params.scalars = kScalars;
    return params;
  }
};

void time_update_kernels() {
  const UpdateState state;
  const auto gradients = zeros<float>(kCount), loss = filled(1, 1.0f);
  DeviceBuffer<float> partial(update_partials());
  const SquareSumParams squares{true, kCount, gradients.get(), partial.get()};
  UpdateControlParams before{};
  before.square_sum = partial.get();
  before.loss = loss.get();
  before.updates = state.updates.get();
  before.control = state.control.get();
  before.scalars = kScalars;
  const auto norm_and_control = [&] {
    cuda_check(launch_partial_squares(squares, nullptr), "partial_squares");
    cuda_check(launch_square_sum(partial.get(), partial.get(), nullptr), "square_sum");
    cuda_check(launch_update_control(before, nullptr), "update_control");
  };
  print_rate("norm and control", time_of(norm_and_control, kRepeats), 4.0 * kCount);
  AdamWParams params = state.params();
  params.gradients = gradients.get();
  print_rate("AdamW",
             time_of([&] { cuda_check(launch_adamw(params, nullptr), "adamw"); }, kRepeats),
             30.0 * kCount);
  AddGradientsParams sums{};
  sums.sums = gradients.get();
  sums.gradients = 1;
  sums.gradient[0] = state.weights.get();
  sums.count[0] = kCount;
  for (const bool is_first : {true, false}) {
    sums.first = is_first;
    print_rate(
        is_first ? "gradients written" : "gradients added",
        time_of([&] { cuda_check(launch_add_gradients(sums, nullptr), "gradients"); }, kRepeats),
        (is_first ? 6.0 : 10.0) * kCount);
  }
}

// The same kernels if a step has one micro-batch, whose BF16 gradients are read where they lie.
void time_narrow_update_kernels() {
  const UpdateState state;
  const auto gradients = zeros<Bf16>(kCount);
  DeviceBuffer<float> partial(update_partials());
  GradientPieces pieces;
  constexpr std::size_t kPiece = 768'000; // 152 of them, as many as the model has parameters
  for (std::size_t at = 0; at < kCount; at += kPiece) {
    pieces.begin[pieces.pieces] = static_cast<uint32_t>(at / kPieceElements);
    pieces.count[pieces.pieces] =
        static_cast<uint32_t>(std::min(kPiece, kCount - at) / kPieceElements);
    pieces.gradient[pieces.pieces++] = gradients.get() + at;
  }
  const SquareSumParams squares{true, kCount, nullptr, partial.get(), &pieces};
  print_rate(
      "norm of BF16",
      time_of([&] { cuda_check(launch_partial_squares(squares, nullptr), "squares"); }, kRepeats),
      2.0 * kCount);
  AdamWParams params = state.params();
  params.pieces = &pieces;
  print_rate("AdamW from BF16",
             time_of([&] { cuda_check(launch_adamw(params, nullptr), "adamw"); }, kRepeats),
             28.0 * kCount);
}

void time_embedding_gradient(int tokens) {
  constexpr int kRows = 50304, kColumns = 768;
  const std::size_t table = static_cast<std::size_t>(kRows) * kColumns;
  const std::size_t looked_up = static_cast<std::size_t>(tokens) * kColumns;
  DeviceBuffer<Bf16> up(looked_up), d_table(table);
  fill_normal(up.get(), looked_up, 1.0f, 5);
  DeviceBuffer<float> base(table), scale(1);
  cuda_check(cudaMemset(base.get(), 0, table * sizeof(float)), "cudaMemset");
  scale.from_host({1.0f});
  DeviceBuffer<float> factors(static_cast<std::size_t>(tokens)); // of the second list
  cuda_check(cudaMemset(factors.get(), 0, factors.size() * sizeof(float)), "cudaMemset");
  DeviceBuffer<int32_t> workspace(embedding_gradient_workspace(2 * tokens, kRows, kColumns));
  std::mt19937_64 generator(7);
  Ids evenly(static_cast<std::size_t>(tokens));
  for (int64_t& id : evenly)
    id = static_cast<int64_t>(generator() % kRows);
  const std::vector<std::pair<const char*, Ids>> kinds = {
      {"embedding, random ids", evenly},
      {"embedding, like text", like_text(tokens, kRows, 3)},
      {"embedding, one id", Ids(static_cast<std::size_t>(tokens), 17)}};
  for (const auto& [name, values] : kinds) {
    DeviceBuffer<int64_t> ids(values.size());
    ids.from_host(values);
    EmbeddingGradientParams params{tokens,     kRows,       kColumns,        ids.get(),    up.get(),
                                   base.get(), scale.get(), workspace.get(), d_table.get()};
    const Timing t = time_of(
        [&] { cuda_check(launch_embedding_gradient(params, nullptr), "embedding_gradient"); },
        kRepeats);
    const double bytes = 6.0 * static_cast<double>(table) + 2.0 * static_cast<double>(looked_up);
    print_rate(name, t, bytes);
    params.others = tokens;
    params.other_ids = ids.get();
    params.other_rows = up.get();
    params.other_factors = factors.get();
    const Timing both = time_of(
        [&] { cuda_check(launch_embedding_gradient(params, nullptr), "embedding_gradient"); },
        kRepeats);
    print_rate("  and the labels' rows", both, bytes + 2.0 * static_cast<double>(looked_up));
  }
}

} // namespace

void time_layer_kernels(int tokens) {
  {
    const std::size_t count = static_cast<std::size_t>(tokens) * kWidth;
    Tensors rows;
    for (uint64_t i = 0; i < 9; ++i)
      rows.push_back(normal(2 * count, 1.0f, 100 + i));
    time_norm(tokens, rows);
    time_head_split(tokens, rows);
    time_silu_product(tokens, rows);
    time_gates(tokens, rows);
    time_learned_compression(tokens, rows);
  }
  time_cross_entropy();
  time_vocabulary_product();
  time_update_kernels();
  time_narrow_update_kernels();
  time_embedding_gradient(tokens);
}

} // namespace nsa::kernels::check
