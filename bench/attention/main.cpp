// nsa-bench attention: times one layer's attention, forward and backward separately, as a whole and
// by branch. Inputs are random or saved. In the same process it times dense attention by our
// kernels, by cuDNN and by ATen's flash kernels.
//
// TFLOP/s count attended pairs alone (4 d per pair and head forward, 10 d backward). GB/s count
// inputs and outputs once. Both are printed with the rates of a matrix product and a copy on this
// machine. "peak MiB" is the largest memory beyond the inputs while a row runs, gradients included.
// "of S/2" is its ratio to the row of half the length. That row has half the tokens if the whole
// batch is one sequence.
#include "bench/arguments/attention_options.h"
#include "bench/gpu_times/gpu_times.h"
#include "bench/saved_attention/saved_attention.h"
#include "common/base/build_info.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/fused.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

namespace {

using namespace nsa;
using at::Tensor;
using bench::Times;
using nlohmann::ordered_json;

struct Options : bench::AttentionOptions {
  std::vector<int64_t> sequences{2048, 4096, 8192, 16384, 32768, 65536};
  int64_t tokens = 32768, head_dimension = 64;
  std::vector<ops::Kernels> kernels{ops::Kernels::kFused};
  std::string saved;
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(1);
}

Options parse(int argc, char** argv) {
  Options o;
  using bench::into;
  const bench::CommandLine command{
      "nsa-bench attention",
      "One layer's attention on this GPU in BF16, forward and backward: whole, by branch, and "
      "dense\n"
      "by our kernels, cuDNN and ATen's flash kernels beside it.",
      "",
      bench::with_attention_options(
          {{"--sequence", "N,...", "lengths; 2,048 to 65,536 unless given", into(o.sequences)},
           {"--tokens", "N", "tokens in all, one sequence at least; 32,768", into(o.tokens)},
           {"--head-dimension", "N", "64 or 128; 64", into(o.head_dimension)},
           {"--kernels", "fused,aten", "what computes NSA; fused",
            into(o.kernels, {ops::Kernels::kFused, ops::Kernels::kAten})},
           {"--saved", "FILE",
            "inputs of a real layer (nsa-bench model --save-attention); its sizes count",
            into(o.saved)}},
          o),
      {"", "--sequence 2048,8192 --json", "--saved layer6.pt --no-dense"}};
  bench::read_or_exit(command, argc, argv);
  return o;
}

struct Shape {
  int64_t batch, sequence, groups, heads; // heads: heads per group
  int64_t dimension;                      // head dimension
};

// Attended (token, key) pairs of one sequence and head.
struct Pairs {
  double dense = 0, compressed = 0, selected = 0, window = 0;
  explicit Pairs(int64_t sequence) {
    const ops::Sizes sizes;
    for (int64_t t = 0; t < sequence; ++t) {
      dense += double(t + 1);
      compressed += double(reference::compressed_count(t + 1, sizes));
      const int64_t earlier = std::min(t / sizes.selection_block, sizes.selected_blocks - 1);
      selected += double(earlier * sizes.selection_block + t % sizes.selection_block + 1);
      window += double(std::min(t + 1, sizes.window));
    }
  }
};

// The forced blocks {0, c - 1, c} and random others before them; ascending, then -1.
Tensor random_indices(const Shape& s) {
  const auto device = at::TensorOptions().device(at::kCUDA);
  const ops::Sizes sizes;
  const int64_t blocks = reference::block_count(s.sequence, sizes);
  const int64_t slots = std::min(blocks, sizes.selected_blocks);
  const Tensor block = at::arange(blocks, device.dtype(at::kLong));
  const Tensor own = at::arange(s.sequence, device.dtype(at::kLong))
                         .floor_divide(sizes.selection_block)
                         .view({1, s.sequence, 1, 1});
  Tensor scores = at::rand({s.batch, s.sequence, s.groups, blocks}, device.dtype(at::kFloat));
  scores.masked_fill_((block == 0).logical_or(block == own).logical_or(block == own - 1), 2.0);
  scores.masked_fill_(block > own, -1.0);
  const auto [best, chosen] = scores.topk(slots, -1);
  const Tensor ordered =
      // absent blocks sort last
      std::get<0>(chosen.masked_fill(best < 0, blocks).sort(-1));
  Tensor indices =
      at::full({s.batch, s.sequence, s.groups, sizes.selected_blocks}, -1, device.dtype(at::kInt));
  indices.narrow(-1, 0, slots).copy_(ordered.masked_fill(ordered == blocks, -1));
  return indices;
}

struct Problem {
  Shape shape;
  ops::AttentionInputs in;
  std::vector<Tensor> leaves;
  Tensor grad;

  // Tensors that `saved` lacks are random.
  Problem(const Shape& s, const ops::AttentionInputs& saved) : shape(s) {
    const auto device = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
    const auto tensor = [&](const ops::OptionalTensor& given, at::IntArrayRef sizes) {
      return given && given->defined() ? given->to(device) : at::randn(sizes, device);
    };
    const auto compressed = reference::compressed_count(s.sequence, ops::Sizes{});
    in.q = tensor(saved.q, {s.batch, s.sequence, s.groups * s.heads, s.dimension});
    for (std::size_t branch = 0; branch < 3; ++branch) {
      const std::vector<int64_t> sizes = {s.batch, branch == 0 ? compressed : s.sequence, s.groups,
                                          s.dimension};
      in.k[branch] = tensor(saved.k[branch], sizes);
      in.v[branch] = tensor(saved.v[branch], sizes);
    }
    in.gates = saved.gates.defined() ? saved.gates.to(device.dtype(at::kFloat))
                                     : at::rand({s.batch, s.sequence, s.groups * s.heads, 3},
                                                device.dtype(at::kFloat));
    grad = at::randn_like(in.q);
  }
  // Keeps only the requested branches; their tensors require gradients.
  Problem only(std::array<bool, 3> on, const ops::OptionalTensor& indices) const {
    Problem part = *this;
    part.in.indices = indices;
    part.leaves.clear();
    const auto leaf = [&](const Tensor& t) {
      part.leaves.push_back(t.detach().requires_grad_(true));
      return part.leaves.back();
    };
    part.in.q = leaf(in.q);
    part.in.gates = leaf(in.gates);
    for (std::size_t branch = 0; branch < 3; ++branch) {
      part.in.k[branch] = on[branch] ? ops::OptionalTensor(leaf(*in.k[branch])) : std::nullopt;
      part.in.v[branch] = on[branch] ? ops::OptionalTensor(leaf(*in.v[branch])) : std::nullopt;
    }
    return part;
  }
};

// Prints rows as they are measured. A row that would begin after the time limit is only counted.
class Table {
public:
  Table(const Options& options, const bench::Timer& timer, const bench::Ceilings& ceilings)
      : options_(options), timer_(timer), ceilings_(ceilings), begin_(MonotonicTime::now()) {
    const std::string device = bench::device_name();
    const std::string build = build_info().version + "+" + build_info().commit;
    if (options.json) {
      print({{"device", device},
             {"build", build},
             {"copy_gb_s", ceilings.copy_gb_s},
             {"product_tflop_s", ceilings.product_tflop_s}});
      return;
    }
    std::printf(
        "%s, nsa-bench %s\nceilings: copy %.0f GB/s, product %.0f TFLOP/s; %% are of these\n"
        "%7s %-24s %22s %13s %22s %13s %8s %13s %9s %8s\n",
        device.c_str(), build.c_str(), ceilings.copy_gb_s, ceilings.product_tflop_s, "S", "what",
        "forward ms (p10-p90)", "TFLOP/s", "backward ms (p10-p90)", "TFLOP/s", "sum ms", "GB/s",
        "peak MiB", "of S/2");
  }
  ~Table() {
    if (left_out_ > 0)
      std::fprintf(stderr, "%d rows were left out: --seconds %.0f were over\n", left_out_,
                   options_.seconds);
  }

  // Times the forward, which builds the graph, and then the backward alone.
  void measure(const Shape& shape, const std::string& what, double pairs,
               const std::function<Tensor()>& forward, const std::vector<Tensor>& leaves,
               const Tensor& grad) {
    const bench::PeakMemory memory;
    const Times there = time([&] { forward(); });
    const Tensor out = forward();
    const Times back =
        time([&] { torch::autograd::grad({out}, leaves, {grad}, /*retain_graph=*/true); });
    const double sum = there.median + back.median;
    const double peak = double(memory.bytes()) / (1024.0 * 1024.0);
    const auto half = peaks_.find({what, shape.sequence / 2});
    const double growth = half == peaks_.end() || half->second <= 0 ? 0 : peak / half->second;
    peaks_[{what, shape.sequence}] = peak;
    double bytes = 2.0 * double(out.nbytes()); // the output and its gradient
    for (const Tensor& leaf : leaves)
      bytes += 3.0 * double(leaf.nbytes()); // two reads, and one write of its gradient
    const double pair_flop =
        double(shape.dimension) * pairs * double(shape.batch * shape.groups * shape.heads) / 1e9;
    const double forward_tflop_s = 4 * pair_flop / there.median,
                 backward_tflop_s = 10 * pair_flop / back.median, gb_s = bytes / 1e6 / sum;
    if (options_.json) {
      const auto times = [](const Times& t) {
        return ordered_json{
            {"median", t.median}, {"p10", t.low}, {"p90", t.high}, {"repeats", t.repeats}};
      };
      print({{"sequence", shape.sequence},
             {"batch", shape.batch},
             {"what", what},
             {"forward_ms", times(there)},
             {"backward_ms", times(back)},
             {"sum_ms", sum},
             {"forward_tflop_s", forward_tflop_s},
             {"backward_tflop_s", backward_tflop_s},
             {"tflop_s", 14 * pair_flop / sum},
             {"gb_s", gb_s},
             {"peak_over_inputs_mib", peak},
             {"peak_to_half_length", growth > 0 ? ordered_json(growth) : ordered_json(nullptr)}});
      return;
    }
    const auto of = [](double value, double ceiling) { return 100 * value / ceiling; };
    char ratio[16] = "-";
    if (growth > 0) std::snprintf(ratio, sizeof(ratio), "%.2f", growth);
    std::printf(
        "%7lld %-24s %8.3f (%5.3f-%5.3f) %6.1f (%2.0f %%) %8.3f (%5.3f-%5.3f) %6.1f (%2.0f %%) "
        "%8.3f %6.0f (%2.0f %%) %9.0f %8s\n",
        static_cast<long long>(shape.sequence), what.c_str(), there.median, there.low, there.high,
        forward_tflop_s, of(forward_tflop_s, ceilings_.product_tflop_s), back.median, back.low,
        back.high, backward_tflop_s, of(backward_tflop_s, ceilings_.product_tflop_s), sum, gb_s,
        of(gb_s, ceilings_.copy_gb_s), peak, ratio);
    std::fflush(stdout);
  }

  bool late() {
    if (to_seconds(MonotonicTime::now() - begin_) < options_.seconds) return false;
    ++left_out_;
    return true;
  }

private:
  static void print(const ordered_json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  Times time(const std::function<void()>& run) const {
    return timer_.time(run, options_.repeats, options_.row_seconds);
  }

  const Options& options_;
  const bench::Timer& timer_;
  const bench::Ceilings& ceilings_;
  const MonotonicTime begin_;
  int left_out_ = 0;
  std::map<std::pair<std::string, int64_t>, double> peaks_; // MiB, by row and length
};

// The rows of one problem. The most informative rows of all problems come first.
enum class Row { kWhole, kDenseCudnn, kDenseFused, kBranches, kDenseFlash };

void measure_nsa(Table& table, const Problem& problem, Row row, ops::Kernels kernels,
                 const ops::OptionalTensor& given) {
  const Shape& shape = problem.shape;
  const Pairs pairs(shape.sequence);
  const auto measure = [&](std::string what, double count, std::array<bool, 3> on,
                           const ops::OptionalTensor& indices) {
    if (table.late()) return;
    if (kernels != ops::Kernels::kFused) what += " (" + text_of(kernels) + ")";
    const Problem part = problem.only(on, indices);
    table.measure(
        shape, what, count, [&] { return ops::attention(part.in, ops::Settings{}, kernels); },
        part.leaves, part.grad);
  };
  const double all = pairs.compressed + pairs.selected + pairs.window;
  if (row == Row::kWhole) {
    measure("whole", all, {true, true, true}, std::nullopt);
    if (given) measure("whole, saved blocks", all, {true, true, true}, given);
    return;
  }
  if (given) measure("selected, saved blocks", pairs.selected, {false, true, false}, given);
  measure("selected, random blocks", pairs.selected, {false, true, false}, random_indices(shape));
  measure("compressed", pairs.compressed, {true, false, false}, std::nullopt);
  measure("window", pairs.window, {false, false, true}, std::nullopt);
}

void measure_dense(Table& table, const Problem& problem, bool cudnn) {
  if (table.late()) return;
  auto& context = at::globalContext();
  const auto leaf = [](const Tensor& t) {
    return t.transpose(1, 2).contiguous().requires_grad_(true);
  };
  const Tensor q = leaf(problem.in.q);
  const Tensor k = leaf(*problem.in.k[2]);
  const Tensor v = leaf(*problem.in.v[2]);
  const Tensor grad = at::randn_like(q);
  const Pairs pairs(problem.shape.sequence);
  context.setSDPUseMath(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(cudnn);
  context.setSDPUseFlash(!cudnn);
  try {
    table.measure(
        problem.shape, cudnn ? "dense, cuDNN" : "dense, ATen flash", pairs.dense,
        [&] {
          return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true,
                                                  std::nullopt, /*enable_gqa=*/true);
        },
        {q, k, v}, grad);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "dense, %s: %s\n", cudnn ? "cuDNN" : "ATen flash",
                 error.what_without_backtrace());
  }
}

void measure_dense_fused(Table& table, const Problem& problem) {
  if (table.late()) return;
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(true); };
  const Tensor q = leaf(problem.in.q), k = leaf(*problem.in.k[2]), v = leaf(*problem.in.v[2]);
  try {
    table.measure(
        problem.shape, "dense, fused", Pairs(problem.shape.sequence).dense,
        [&] { return ops::fused_causal_attention(q, k, v); }, {q, k, v}, problem.grad);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "dense, fused: %s\n", error.what_without_backtrace());
  }
}

void run(const Options& options) {
  const Status loaded = bench::load_kernels(options.library);
  if (!loaded) die(loaded.error().what);
  ops::AttentionInputs saved;
  std::vector<Shape> shapes;
  if (!options.saved.empty()) {
    const auto tensors = bench::read_tensors(options.saved);
    if (!tensors) die(tensors.error().what);
    const auto inputs = bench::from_named(*tensors);
    if (!inputs) die(options.saved + ": " + inputs.error().what);
    saved = *inputs;
    const Tensor& q = saved.q;
    const auto k =
        std::find_if(saved.k.begin(), saved.k.end(), [](const auto& t) { return bool(t); });
    if (k == saved.k.end()) die(options.saved + " holds keys of no branch");
    const int64_t groups = (*k)->size(2);
    shapes.push_back({q.size(0), q.size(1), groups, q.size(2) / groups, q.size(3)});
    if (saved.indices) saved.indices = saved.indices->to(at::kCUDA, at::kInt);
  } else {
    for (const int64_t sequence : options.sequences)
      shapes.push_back({std::max<int64_t>(1, options.tokens / sequence), sequence, options.groups,
                        options.heads, options.head_dimension});
  }
  const bench::Timer timer;
  const bench::Ceilings ceilings = bench::measure_ceilings(timer);
  Table table(options, timer, ceilings);
  for (const Row row :
       {Row::kWhole, Row::kDenseCudnn, Row::kDenseFused, Row::kBranches, Row::kDenseFlash})
    for (const Shape& shape : shapes) {
      const Problem problem(shape, saved);
      if (row == Row::kWhole || row == Row::kBranches) {
        for (const ops::Kernels kernels : options.kernels)
          measure_nsa(table, problem, row, kernels, saved.indices);
      } else if (options.dense && row == Row::kDenseFused) {
        measure_dense_fused(table, problem);
      } else if (options.dense) {
        measure_dense(table, problem, row == Row::kDenseCudnn);
      }
    }
}

} // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const c10::Error& error) {
    die(error.what_without_backtrace());
  } catch (const std::exception& error) {
    die(error.what());
  }
}
