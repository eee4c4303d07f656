#include "nsa_model/kernels/check/documents_case.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "nsa_model/kernels/check/measure.h"
#include "nsa_model/kernels/check/timing.h"

namespace nsa::kernels::check {
namespace {

// An attention problem whose saved tensors and workspace are those of a plan.
struct PackedCase {
  PackedCase(const DocumentsOptions& wanted, DocumentPlan its_plan)
      : options(wanted), plan(std::move(its_plan)), attention(wanted.attention) {
    const AttentionShape& shape = options.attention.shape;
    const auto tokens = static_cast<std::size_t>(plan.tokens);
    const auto heads = static_cast<std::size_t>(shape.groups * shape.heads);
    const auto groups = static_cast<std::size_t>(shape.groups);
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    for (int branch = 0; branch < kBranches; ++branch) {
      attention.branch_out[branch] = DeviceBuffer<__nv_bfloat16>(tokens * heads * dim);
      attention.branch_lse[branch] = DeviceBuffer<float>(tokens * heads);
    }
    attention.indices = DeviceBuffer<int32_t>(tokens * groups * kSlots);
    attention.lists = DeviceBuffer<char>(documents_list_bytes(shape, plan));
    if (options.compressed_given && attention.cmp_count > 0) {
      fill_normal(attention.k_cmp.get(), attention.cmp_count, 0.7f, 3);
      fill_normal(attention.v_cmp.get(), attention.cmp_count, 1.0f, 4);
    } else if (!options.compressed_given) {
      const std::size_t rows = std::max<std::size_t>(1, static_cast<std::size_t>(plan.compressed));
      attention.k_cmp = DeviceBuffer<__nv_bfloat16>(rows * groups * dim);
      attention.v_cmp = DeviceBuffer<__nv_bfloat16>(rows * groups * dim);
    }
    attention.workspace = {}; // the first may be larger than what both need
    attention.workspace =
        DeviceBuffer<char>(std::max(documents_forward_workspace_bytes(inputs(), plan),
                                    documents_backward_workspace_bytes(inputs(), plan)));
  }

  FusedInputs inputs() const {
    FusedInputs inputs = attention.inputs();
    if (options.compressed_given) inputs.pool_k = inputs.pool_v = nullptr;
    return inputs;
  }
  void forward() {
    cuda_check(launch_documents_forward(inputs(), plan, attention.saved(), attention.out.get(),
                                        attention.workspace.get(), nullptr),
               "forward of documents");
  }
  void backward() {
    cuda_check(launch_documents_backward(inputs(), plan, attention.saved(), attention.gradients(),
                                         attention.workspace.get(), nullptr),
               "backward of documents");
  }

  DocumentsOptions options;
  DocumentPlan plan;
  AttentionCase attention;
};

// Rows [begin, begin + count) of both buffers, `width` elements each.
template <typename T>
void take(const DeviceBuffer<T>& to, const DeviceBuffer<T>& from, std::size_t begin,
          std::size_t count, std::size_t width) {
  cuda_check(cudaMemcpy(to.get(), from.get() + begin * width, count * width * sizeof(T),
                        cudaMemcpyDeviceToDevice),
             "copy");
}

double value_of(__nv_bfloat16 x) {
  return static_cast<double>(__bfloat162float(x));
}
double value_of(float x) {
  return static_cast<double>(x);
}

// One tensor of the packed problem, and what it should be: poison where no document is.
template <typename T> class Expected {
public:
  Expected(std::string name, const DeviceBuffer<T>& packed, bool same_bits)
      : name_(std::move(name)), found_(packed.to_host()), wanted_(found_.size()),
        same_bits_(same_bits) {
    std::memset(static_cast<void*>(wanted_.data()), 0xFF, wanted_.size() * sizeof(T));
  }
  void take(const DeviceBuffer<T>& alone, std::size_t begin, std::size_t count, std::size_t width) {
    const std::vector<T> values = alone.to_host();
    std::copy_n(values.begin(), count * width,
                wanted_.begin() + static_cast<std::ptrdiff_t>(begin * width));
    if (std::memcmp(&found_[begin * width], values.data(), count * width * sizeof(T)) == 0) return;
    ++differing_;
    if (first_.empty())
      first_ = std::to_string(count) + " rows from " + std::to_string(begin) + " on";
  }
  void judge(std::vector<std::string>& failures) const {
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (std::memcmp(&found_[i], &wanted_[i], sizeof(T)) != 0)
        difference += std::pow(value_of(found_[i]) - value_of(wanted_[i]), 2);
      if (!std::isnan(value_of(wanted_[i]))) norm += std::pow(value_of(wanted_[i]), 2);
    }
    const double relative = difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
    // Sums in FP32 cut elsewhere, rounded to BF16: few last bits.
    constexpr double kNear = 0.001;
    const std::string what = name_ + ": " + std::to_string(differing_) +
                             " documents have other bits than alone, the first " + first_ +
                             ", relative " + std::to_string(relative);
    if (same_bits_ ? difference != 0.0 || differing_ > 0 : !(relative <= kNear))
      failures.push_back(what);
    else if (differing_ > 0)
      std::printf("  %s\n", what.c_str());
  }

private:
  std::string name_;
  std::vector<T> found_, wanted_;
  bool same_bits_;
  int differing_ = 0;
  std::string first_;
};

std::vector<Document> drawn(const AttentionShape& shape, double low, double high) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(std::log2(low), std::log2(high));
  std::vector<Document> documents;
  for (int row = 0; row < shape.batch; ++row) {
    int compressed = 0;
    for (int begin = 0; begin < shape.sequence;) {
      const int length =
          std::min(static_cast<int>(std::exp2(exponent(random))), shape.sequence - begin);
      documents.push_back({row, begin, length, compressed});
      begin += length;
      compressed += compressed_count(length);
    }
  }
  return documents;
}

// Milliseconds that the host takes to hand a forward and a backward over, with an idle device.
double host_milliseconds(PackedCase& c) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    cuda_check(cudaDeviceSynchronize(), "wait");
    const auto start = Clock::now();
    c.forward();
    c.backward();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double time_plan(const DocumentsOptions& options, DocumentPlan plan, const char* name) {
  const auto batches = plan.batches.size();
  const auto tokens = static_cast<long long>(plan.tokens);
  PackedCase c(options, std::move(plan));
  const Timing forward = time_of([&] { c.forward(); }, 10);
  const Timing backward = time_of([&] { c.backward(); }, 10);
  std::printf("  %-28s %4zu batches %7lld tokens | %7.3f (%.3f-%.3f) | %7.3f (%.3f-%.3f) | sum "
              "%7.3f | host %7.3f | workspace %.0f MiB\n",
              name, batches, tokens, forward.median, forward.low, forward.high, backward.median,
              backward.low, backward.high, forward.median + backward.median, host_milliseconds(c),
              static_cast<double>(c.attention.workspace.size()) / 1048576.0);
  std::fflush(stdout);
  return forward.median + backward.median;
}

// Each batch of a plan by itself, and sequences of the same sizes without copies.
void time_batches(const DocumentsOptions& options, const DocumentPlan& plan) {
  for (const DocumentBatch& batch : plan.batches) {
    DocumentPlan one;
    one.batches = {batch};
    one.batches[0].token_begin = one.batches[0].compressed_begin = 0;
    const auto count = static_cast<int64_t>(batch.documents.size());
    one.tokens = count * batch.length;
    one.compressed = count * compressed_count(batch.length);
    PackedCase c(options, one);
    CaseOptions plain = options.attention;
    plain.shape = batch.shape(plain.shape);
    AttentionCase without(plain);
    const auto sum = [](auto& problem) {
      return time_of([&] { problem.forward(); }, 10).median +
             time_of([&] { problem.backward(); }, 10).median;
    };
    const double copied = sum(c);
    const double bare = sum(without);
    std::printf("    %4lld of %5d tokens%s: %.3f ms, without copies %.3f (%.1f ns a token)\n",
                static_cast<long long>(count), batch.length, batch.in_place ? " in place" : "",
                copied, bare, 1e6 * bare / static_cast<double>(one.tokens));
    std::fflush(stdout);
  }
}

} // namespace

std::vector<Document> documents_of(const AttentionShape& shape, const std::vector<int>& lengths) {
  std::vector<Document> documents;
  for (int row = 0; row < shape.batch; ++row) {
    int compressed = 0;
    std::size_t next = 0;
    for (int begin = 0; begin < shape.sequence; ++next) {
      const int length = std::min(lengths[next % lengths.size()], shape.sequence - begin);
      documents.push_back({row, begin, length, compressed});
      begin += length;
      compressed += compressed_count(length);
    }
  }
  return documents;
}

namespace {

// Results of a packed problem run by one plan, and what they should be.
struct Results {
  Results(const DocumentsOptions& options, Batching batching) {
    const AttentionShape& shape = options.attention.shape;
    PackedCase packed(options,
                      plan_documents(shape, options.attention.tuning, options.documents, batching));
    packed.forward();
    packed.attention.workspace.poison();
    packed.backward();
    const bool one_by_one = batching == Batching::kOneByOne;
    const std::string how = one_by_one ? "one by one: " : "batched: ";
    bf16.emplace_back(how + "out", packed.attention.out, true);
    bf16.emplace_back(how + "dq", packed.attention.d_q, true);
    const char* names[kBranches] = {"compressed", "selected", "window"};
    for (int branch = 0; branch < kBranches; ++branch) {
      const bool same_bits = one_by_one || branch == 2;
      bf16.emplace_back(how + "dk " + names[branch], packed.attention.d_k[branch], same_bits);
      bf16.emplace_back(how + "dv " + names[branch], packed.attention.d_v[branch], same_bits);
    }
    d_gates.emplace_back(how + "dgates", packed.attention.d_gates, true);
  }
  std::vector<Expected<__nv_bfloat16>> bf16; // out, dq, then dk and dv of each branch
  std::vector<Expected<float>> d_gates;
};

} // namespace

std::vector<std::string> compare_with_alone(const DocumentsOptions& options) {
  const AttentionShape& shape = options.attention.shape;
  Results results[] = {{options, Batching::kByLength}, {options, Batching::kOneByOne}};
  PackedCase packed(options, plan_documents(shape, options.attention.tuning,
                                            options.documents)); // for its inputs
  const AttentionCase& all = packed.attention;
  const auto query = static_cast<std::size_t>(shape.groups * shape.heads * shape.head_dim);
  const auto gates = static_cast<std::size_t>(shape.groups * shape.heads * kBranches);
  const auto key = static_cast<std::size_t>(shape.groups * shape.head_dim);
  const auto slots = static_cast<std::size_t>(shape.groups * kSlots);
  for (const Document& document : options.documents) {
    const auto begin = static_cast<std::size_t>(document.row * shape.sequence + document.begin);
    const auto count = static_cast<std::size_t>(document.length);
    const auto compressed_begin = static_cast<std::size_t>(
        document.row * compressed_count(shape.sequence) + document.compressed_begin);
    const auto compressed = static_cast<std::size_t>(compressed_count(document.length));
    DocumentsOptions its_own = options;
    its_own.attention.shape.batch = 1;
    its_own.attention.shape.sequence = document.length;
    PackedCase alone(its_own, plan_rows(its_own.attention.shape));
    AttentionCase& one = alone.attention;
    take(one.q, all.q, begin, count, query);
    take(one.d_out, all.d_out, begin, count, query);
    take(one.gates, all.gates, begin, count, gates);
    for (int branch = 0; branch < kBranches; ++branch) {
      take(one.k[branch], all.k[branch], begin, count, key);
      take(one.v[branch], all.v[branch], begin, count, key);
    }
    if (all.given.size() > 0) take(one.given, all.given, begin, count, slots);
    if (options.compressed_given) {
      take(one.k_cmp, all.k_cmp, compressed_begin, compressed, key);
      take(one.v_cmp, all.v_cmp, compressed_begin, compressed, key);
    }
    alone.forward();
    alone.backward();
    for (Results& found : results) {
      found.bf16[0].take(one.out, begin, count, query);
      found.bf16[1].take(one.d_q, begin, count, query);
      found.d_gates[0].take(one.d_gates, begin, count, gates);
      for (int branch = 0; branch < kBranches; ++branch) {
        if (!options.attention.branch_on[branch]) continue;
        const bool by_compressed = branch == 0 && options.compressed_given;
        const std::size_t from = by_compressed ? compressed_begin : begin;
        const std::size_t rows = by_compressed ? compressed : count;
        if (rows == 0) continue;
        const auto index = static_cast<std::size_t>(2 + 2 * branch);
        found.bf16[index].take(one.d_k[branch], from, rows, key);
        found.bf16[index + 1].take(one.d_v[branch], from, rows, key);
      }
    }
  }
  std::vector<std::string> failures;
  for (const Results& found : results) {
    for (const auto& tensor : found.bf16)
      tensor.judge(failures);
    found.d_gates[0].judge(failures);
  }
  return failures;
}

int time_documents(int tokens, const CaseOptions& options) {
  constexpr int kRow = 2048;
  struct Mix {
    const char* name;
    double low, high;
  };
  constexpr Mix kMixes[] = {{"16 to 2048", 16, 2048},
                            {"256 to 2048", 256, 2048},
                            {"16 to 128", 16, 128},
                            {"whole rows", kRow, kRow + 1}};
  for (const Mix& mix : kMixes) {
    DocumentsOptions packed;
    packed.attention = options;
    packed.attention.shape.batch = std::max(1, tokens / kRow);
    packed.attention.shape.sequence = kRow;
    const AttentionShape& shape = packed.attention.shape;
    packed.documents = drawn(shape, mix.low, mix.high);
    std::printf("%d tokens in rows of %d, %zu documents of %s tokens; forward | backward, ms\n",
                shape.batch * kRow, kRow, packed.documents.size(), mix.name);
    const DocumentPlan batched = plan_documents(shape, options.tuning, packed.documents);
    const double together = time_plan(packed, batched, "batched");
    const double alone = time_plan(
        packed, plan_documents(shape, options.tuning, packed.documents, Batching::kOneByOne),
        "one by one");
    std::printf("  one by one takes %.2f times as long\n", alone / together);
    if (&mix != kMixes) continue;
    for (const int price : {256, 512, 1024, 4096, 8192}) {
      const std::string name = "batched, launches as " + std::to_string(price);
      time_plan(packed,
                plan_documents(shape, options.tuning, packed.documents, Batching::kByLength, price),
                name.c_str());
    }
    time_batches(packed, batched);
  }
  return 0;
}

} // namespace nsa::kernels::check
