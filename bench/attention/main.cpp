// nsa-bench-attention: one layer's attention, forward and backward, whole and by branch, on random
// and on saved inputs, beside dense attention by cuDNN and by ATen's flash kernels in the same
// process.
//
//   nsa-bench-attention [--sequence 2048,8192] [--tokens 32768] [--groups 2] [--heads 6]
//                       [--repeats 20] [--saved FILE] [--no-dense] [--json] [--library FILE]
//
// --heads counts a group. --saved reads a dictionary of tensors that torch.save wrote: q [B, S, H,
// 64], k_selected, v_selected [B, S, G, 64], indices [B, S, G, 16] int32, and optionally
// k_compressed, v_compressed, k_sliding, v_sliding, gates; what is missing is random. Its sizes
// count. --library is libnsa_ops_cuda.so where it is not beside the program or in ../lib.
//
// TFLOP/s count attended pairs alone (4 d a pair and head forward, 10 d backward); GB/s count
// inputs and outputs once. Both stand beside what a product and a copy reach on this machine.
#include "bench/attention/measure.h"
#include "nsa_model/ops/attention.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace {

using namespace nsa;
using at::Tensor;
using bench::Times;
using nlohmann::ordered_json;

constexpr int64_t kDim = 64;

struct Options {
  std::vector<int64_t> sequences{2048, 4096, 8192, 16384, 32768, 65536};
  int64_t tokens = 32768, groups = 2, heads = 6;
  int repeats = 20;
  bool dense = true, json = false;
  std::string saved, library;
};

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(1);
}

int64_t number(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1) die("\"" + text + "\" is not a number from 1 up");
  return value;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json" || name == "--no-dense") {
      name == "--json" ? o.json = true : o.dense = false;
      continue;
    }
    if (i + 1 == argc)
      die(name + " is unknown or needs a value; usage: nsa-bench-attention [--sequence N,...] "
                 "[--tokens N] [--groups N] [--heads N] [--repeats N] [--saved FILE] [--no-dense] "
                 "[--json] [--library FILE]");
    const std::string value = argv[++i];
    if (name == "--sequence") {
      o.sequences.clear();
      std::stringstream words(value);
      for (std::string word; std::getline(words, word, ',');)
        o.sequences.push_back(number(word));
    } else if (name == "--tokens") {
      o.tokens = number(value);
    } else if (name == "--groups") {
      o.groups = number(value);
    } else if (name == "--heads") {
      o.heads = number(value);
    } else if (name == "--repeats") {
      o.repeats = static_cast<int>(number(value));
    } else if (name == "--saved") {
      o.saved = value;
    } else if (name == "--library") {
      o.library = value;
    } else {
      die("unknown argument " + name);
    }
  }
  return o;
}

// LibTorch's CUDA part before anything asks for a device, then the kernels.
void load_kernels(const Options& options) {
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    die(std::string("LibTorch's CUDA part cannot be loaded: ") + ::dlerror());
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) die("there is no GPU");
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string library = options.library;
  for (const auto& place : {folder / "../lib/libnsa_ops_cuda.so", folder / "libnsa_ops_cuda.so"})
    if (library.empty() && std::filesystem::exists(place)) library = place.string();
  if (library.empty() || ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    die(library.empty() ? "libnsa_ops_cuda.so is neither beside the program nor in ../lib"
                        : std::string("the kernels cannot be loaded: ") + ::dlerror());
}

struct Shape {
  int64_t batch, sequence, groups, heads; // heads of a group
  double rows() const { return double(batch) * double(sequence) * double(groups * heads); }
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

using Named = std::map<std::string, Tensor>;

Named read_saved(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) die("cannot open " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const c10::IValue value = torch::jit::pickle_load(bytes);
  if (!value.isGenericDict()) die(path + " does not hold a dictionary of tensors");
  Named tensors;
  for (const auto& entry : value.toGenericDict())
    if (entry.key().isString() && entry.value().isTensor())
      tensors[entry.key().toStringRef()] = entry.value().toTensor();
  for (const char* name : {"q", "k_selected", "v_selected", "indices"})
    if (!tensors.contains(name)) die(path + " holds no tensor \"" + name + "\"");
  return tensors;
}

// The forced blocks {0, c - 1, c} and random others before them; ascending, -1 behind.
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
      std::get<0>(chosen.masked_fill(best < 0, blocks).sort(-1)); // those that are none last
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

  Problem(const Shape& s, const Named& saved) : shape(s) {
    const auto device = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
    const auto tensor = [&](const std::string& name, at::IntArrayRef sizes) {
      const auto found = saved.find(name);
      return found == saved.end() ? at::randn(sizes, device) : found->second.to(device);
    };
    const auto compressed = reference::compressed_count(s.sequence, ops::Sizes{});
    in.q = tensor("q", {s.batch, s.sequence, s.groups * s.heads, kDim});
    constexpr const char* kNames[3] = {"compressed", "selected", "sliding"};
    for (std::size_t branch = 0; branch < 3; ++branch) {
      const std::vector<int64_t> sizes = {s.batch, branch == 0 ? compressed : s.sequence, s.groups,
                                          kDim};
      in.k[branch] = tensor(std::string("k_") + kNames[branch], sizes);
      in.v[branch] = tensor(std::string("v_") + kNames[branch], sizes);
    }
    in.gates = saved.contains("gates") ? saved.at("gates").to(device.dtype(at::kFloat))
                                       : at::rand({s.batch, s.sequence, s.groups * s.heads, 3},
                                                  device.dtype(at::kFloat));
    grad = at::randn_like(in.q);
  }
  // The branches asked for alone; their tensors want gradients.
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

class Table {
public:
  Table(const Options& options, const bench::Ceilings& ceilings)
      : options_(options), ceilings_(ceilings) {
    if (options.json) {
      std::printf("%s\n", ordered_json{{"copy_gb_s", ceilings.copy_gb_s},
                                       {"product_tflop_s", ceilings.product_tflop_s}}
                              .dump()
                              .c_str());
      return;
    }
    std::printf("ceilings: copy %.0f GB/s, product %.0f TFLOP/s\n%7s %-20s %21s %21s %8s %8s %7s\n",
                ceilings.copy_gb_s, ceilings.product_tflop_s, "S", "what", "forward ms (p10-p90)",
                "backward ms (p10-p90)", "sum ms", "TFLOP/s", "GB/s");
  }

  // Forward with the graph of its backward, then the backward alone.
  void measure(const Shape& shape, const std::string& what, double pairs,
               const std::function<Tensor()>& forward, const std::vector<Tensor>& leaves,
               const Tensor& grad) const {
    const Times there = bench::time_of([&] { forward(); }, options_.repeats);
    const Tensor out = forward();
    const Times back =
        bench::time_of([&] { torch::autograd::grad({out}, leaves, {grad}, /*retain_graph=*/true); },
                       options_.repeats);
    const double sum = there.median + back.median;
    double bytes = 2.0 * double(out.nbytes()); // the output and its gradient
    for (const Tensor& leaf : leaves)
      bytes += 3.0 * double(leaf.nbytes()); // read twice, its gradient written
    const double tflop_s =
        14.0 * kDim * pairs * double(shape.batch * shape.groups * shape.heads) / 1e9 / sum;
    const double gb_s = bytes / 1e6 / sum;
    if (options_.json) {
      const auto times = [](const Times& t) {
        return ordered_json{{"median", t.median}, {"p10", t.low}, {"p90", t.high}};
      };
      std::printf("%s\n", ordered_json{{"sequence", shape.sequence},
                                       {"batch", shape.batch},
                                       {"what", what},
                                       {"forward_ms", times(there)},
                                       {"backward_ms", times(back)},
                                       {"sum_ms", sum},
                                       {"tflop_s", tflop_s},
                                       {"gb_s", gb_s}}
                              .dump()
                              .c_str());
    } else {
      std::printf("%7lld %-20s %7.3f (%.3f-%.3f) %7.3f (%.3f-%.3f) %8.3f %8.1f %7.0f\n",
                  static_cast<long long>(shape.sequence), what.c_str(), there.median, there.low,
                  there.high, back.median, back.low, back.high, sum, tflop_s, gb_s);
    }
    std::fflush(stdout);
  }

private:
  const Options& options_;
  const bench::Ceilings& ceilings_;
};

void measure_nsa(const Table& table, const Problem& problem, const ops::OptionalTensor& given) {
  const Shape& shape = problem.shape;
  const Pairs pairs(shape.sequence);
  const auto measure = [&](const std::string& what, double count, std::array<bool, 3> on,
                           const ops::OptionalTensor& indices) {
    const Problem part = problem.only(on, indices);
    table.measure(
        shape, what, count, [&] { return ops::attention(part.in, ops::Settings{}, "fused"); },
        part.leaves, part.grad);
  };
  const double all = pairs.compressed + pairs.selected + pairs.window;
  measure("whole", all, {true, true, true}, std::nullopt);
  if (given) measure("whole, saved blocks", all, {true, true, true}, given);
  measure("selected, random", pairs.selected, {false, true, false}, random_indices(shape));
  if (given) measure("selected, saved", pairs.selected, {false, true, false}, given);
  measure("compressed", pairs.compressed, {true, false, false}, std::nullopt);
  measure("window", pairs.window, {false, false, true}, std::nullopt);
}

void measure_dense(const Table& table, const Problem& problem) {
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
  for (const bool cudnn : {true, false}) {
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
}

void run(const Options& options) {
  load_kernels(options);
  const bench::Ceilings ceilings = bench::measure_ceilings();
  const Table table(options, ceilings);
  if (!options.saved.empty()) {
    const Named saved = read_saved(options.saved);
    const Tensor& q = saved.at("q");
    const int64_t groups = saved.at("k_selected").size(2);
    const Shape shape = {q.size(0), q.size(1), groups, q.size(2) / groups};
    const Problem problem(shape, saved);
    measure_nsa(table, problem, saved.at("indices").to(at::kCUDA, at::kInt));
    if (options.dense) measure_dense(table, problem);
    return;
  }
  for (const int64_t sequence : options.sequences) {
    const Shape shape = {std::max<int64_t>(1, options.tokens / sequence), sequence, options.groups,
                         options.heads};
    const Problem problem(shape, {});
    measure_nsa(table, problem, std::nullopt);
    if (options.dense) measure_dense(table, problem);
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
