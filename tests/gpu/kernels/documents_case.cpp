#include "tests/gpu/kernels/documents_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace nsa::kernels::check {
namespace {

// Copies rows [begin, begin + count) from one buffer to the other. A row has `width` elements.
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

// One tensor of the packed problem and its expected values. Rows without a document must stay
// poisoned.
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
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are compared, NaN and zero too
      if (std::memcmp(&found_[i], &wanted_[i], sizeof(T)) != 0)
        difference += std::pow(value_of(found_[i]) - value_of(wanted_[i]), 2);
      if (!std::isnan(value_of(wanted_[i]))) norm += std::pow(value_of(wanted_[i]), 2);
    }
    const double relative = difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
    // FP32 sums that are divided differently and rounded to BF16 differ in a few last bits.
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

// The results of a packed problem with one plan, and the expected values.
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
  std::vector<Expected<__nv_bfloat16>> bf16; // out and dq, then dk and dv of each branch
  std::vector<Expected<float>> d_gates;
};

} // namespace

std::vector<std::string> compare_with_alone(const DocumentsOptions& options) {
  const AttentionShape& shape = options.attention.shape;
  Results results[] = {{options, Batching::kByLength}, {options, Batching::kOneByOne}};
  PackedCase packed(options, plan_documents(shape, options.attention.tuning,
                                            options.documents)); // only its inputs are used
  const AttentionCase& all = packed.attention;
  const auto query = static_cast<std::size_t>(shape.groups) * shape.heads * shape.head_dim;
  const auto gates = static_cast<std::size_t>(shape.groups) * shape.heads * kBranches;
  const auto key = static_cast<std::size_t>(shape.groups) * shape.head_dim;
  const auto slots = static_cast<std::size_t>(shape.groups) * kSlots;
  for (const Document& document : options.documents) {
    const auto begin = static_cast<std::size_t>(document.row) * shape.sequence + document.begin;
    const auto count = static_cast<std::size_t>(document.length);
    const auto compressed_begin =
        static_cast<std::size_t>(document.row) * compressed_count(shape.sequence) +
        document.compressed_begin;
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
        const std::size_t index = 2 + 2 * static_cast<std::size_t>(branch);
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

} // namespace nsa::kernels::check
