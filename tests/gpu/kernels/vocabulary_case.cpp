#include "tests/gpu/kernels/vocabulary_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"
#include "tests/gpu/kernels/judge.h"

namespace nsa::kernels::check {
namespace {

// Logits are normal numbers with `deviation`, plus `offset`. A row's label is the column of its
// smallest logit if `improbable`.
struct Case {
  std::string name;
  int rows, columns, inner;
  double deviation = 1.0, offset = 0.0;
  bool improbable = false;
};

template <typename T> DeviceBuffer<T> on_device(const std::vector<T>& host) {
  DeviceBuffer<T> buffer(host.size());
  buffer.from_host(host);
  return buffer;
}
template <typename T> Doubles to_doubles(const std::vector<T>& values) {
  Doubles result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    result[i] = to_double(values[i]);
  return result;
}
template <typename T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

struct Inputs {
  std::vector<Bf16> x, weight;
  std::vector<int64_t> labels;
  std::vector<float> row_weight;
};

Inputs inputs_of(const Case& c) {
  std::mt19937_64 generator(20251128);
  std::normal_distribution<double> normal;
  Inputs in{std::vector<Bf16>(product(c.rows, c.inner)),
            std::vector<Bf16>(product(c.columns, c.inner)), std::vector<int64_t>(c.rows),
            std::vector<float>(c.rows)};
  for (Bf16& value : in.x)
    value = __double2bfloat16(normal(generator));
  for (Bf16& value : in.weight)
    value = __double2bfloat16(c.deviation / std::sqrt(c.inner) * normal(generator));
  constexpr double kOne = 16.0; // the first column of x adds the same to all logits
  for (int row = 0; row < c.rows; ++row) {
    in.x[product(row, c.inner)] = __double2bfloat16(kOne);
    in.labels[row] = static_cast<int64_t>(generator() % static_cast<uint64_t>(c.columns));
    in.row_weight[row] = row % 5 == 4 ? 0.0f : 1.0f / static_cast<float>(c.rows);
  }
  for (int column = 0; column < c.columns; ++column)
    in.weight[product(column, c.inner)] = __double2bfloat16(c.offset / kOne);
  in.labels[0] = c.columns - 1;
  return in;
}

struct Outputs {
  std::vector<Bf16> exponentials, scaled;
  std::vector<float> loss, factor, label_factor;
  bool operator==(const Outputs& o) const {
    return same_bits(exponentials, o.exponentials) && same_bits(scaled, o.scaled) &&
           same_bits(loss, o.loss) && same_bits(factor, o.factor) &&
           same_bits(label_factor, o.label_factor);
  }
};

// The exponentials have one row more than the product, which must keep its bits.
Outputs run(const Case& c, const Inputs& in) {
  const auto x = on_device(in.x), weight = on_device(in.weight);
  const auto labels = on_device(in.labels);
  const auto row_weight = on_device(in.row_weight);
  DeviceBuffer<float> workspace(vocabulary_product_workspace(c.rows, c.columns));
  DeviceBuffer<Bf16> exponentials(product(c.rows + 1, c.columns)), scaled(in.x.size());
  DeviceBuffer<float> loss(c.rows), factor(c.rows), label_factor(c.rows);
  VocabularyProductParams params{};
  params.rows = c.rows;
  params.columns = c.columns;
  params.inner = c.inner;
  params.x = x.get();
  params.weight = weight.get();
  params.labels = labels.get();
  params.row_weight = row_weight.get();
  params.workspace = workspace.get();
  params.exponentials = exponentials.get();
  params.loss = loss.get();
  params.factor = factor.get();
  params.label_factor = label_factor.get();
  params.scaled = scaled.get();
  cuda_check(launch_vocabulary_product(params, nullptr), "vocabulary_product");
  return {exponentials.to_host(), scaled.to_host(), loss.to_host(), factor.to_host(),
          label_factor.to_host()};
}

// One row of logits in FP64.
void multiply(Doubles& logits, const Doubles& weight, const double* x, std::size_t inner) {
  for (std::size_t column = 0; column < logits.size(); ++column) {
    double sums[4] = {};
    for (std::size_t i = 0; i < inner; i += 4)
      for (std::size_t j = 0; j < 4; ++j)
        sums[j] += x[i + j] * weight[column * inner + i + j];
    logits[column] = sums[0] + sums[1] + sums[2] + sums[3];
  }
}

// The largest errors of all rows, each divided by its limit.
struct Worst {
  double exponential = 0.0, loss = 0.0, factor = 0.0, label_factor = 0.0, scaled = 0.0;
  std::size_t at_label = 0, without_nan = 0; // values other than zero, losses other than NaN
};
void raise(double& worst, double error) {
  if (!(error <= worst)) worst = error; // keeps NaN
}

// FP16 has 11 significant bits, so an exponent changes by at most this part of itself.
constexpr double kExponentPart = 0x1p-11;

// Compares a row with its logits. `single` is the limit of an exponential's relative error before
// an exponent is rounded to FP16 and the exponential to BF16.
void compare(Worst& worst, const Case& c, const Inputs& in, const Outputs& out,
             const Doubles& logits, int row, double single) {
  const int64_t label = in.labels[row];
  const bool known = label >= 0 && label < c.columns;
  const double center = known ? logits[label] : 0.0, weight = to_double(in.row_weight[row]);
  const double largest = std::pow(2.0, 100.0);
  constexpr double kNarrow = 0x1p-8; // half a unit in the last of BF16's eight bits
  double sum = 0.0, change = 0.0;
  for (int column = 0; column < c.columns; ++column) {
    const double exponent = logits[column] - center;
    const double wanted = std::min(std::exp(exponent), largest);
    const Bf16 got = out.exponentials[product(row, c.columns) + column];
    const double rounding = kExponentPart * std::abs(exponent);
    sum += wanted;
    change += wanted * rounding;
    if (known && column == label)
      worst.at_label += __bfloat16_as_ushort(got);
    else
      raise(worst.exponential, std::abs(to_double(got) - wanted) / std::max(wanted, 1e-30) /
                                   (kNarrow + single + rounding));
  }
  const double limit = single + change / sum; // of the sum's relative error
  const double factor = known ? weight / sum : 0.0,
               label_factor = known ? weight * (1.0 / sum - 1.0) : 0.0;
  if (!known)
    worst.without_nan += !std::isnan(out.loss[row]);
  else
    raise(worst.loss, std::abs(to_double(out.loss[row]) - weight * std::log(sum)) * c.rows /
                          (limit + single * std::log(sum)));
  raise(worst.factor, std::abs(to_double(out.factor[row]) - factor) / (factor + 1e-38) / limit);
  raise(worst.label_factor,
        std::abs(to_double(out.label_factor[row]) - label_factor) * c.rows / limit);
  for (int i = 0; i < c.inner; ++i) {
    const double wanted = factor * to_double(in.x[product(row, c.inner) + i]);
    const double got = to_double(out.scaled[product(row, c.inner) + i]);
    raise(worst.scaled,
          std::abs(got - wanted) / std::max(std::abs(wanted), 1e-37) / (kNarrow + limit));
  }
}

void check(const Case& c) {
  Inputs in = inputs_of(c);
  const Doubles weight = to_doubles(in.weight), x = to_doubles(in.x);
  std::vector<Doubles> logits(c.rows, Doubles(c.columns));
  for (int row = 0; row < c.rows; ++row) {
    Doubles& of_row = logits[row];
    multiply(of_row, weight, x.data() + product(row, c.inner), static_cast<std::size_t>(c.inner));
    if (c.improbable)
      in.labels[row] = std::min_element(of_row.begin(), of_row.end()) - of_row.begin();
    if (row % 97 == 7) in.labels[row] = row % 2 == 0 ? -100 : c.columns;
  }
  const Outputs out = run(c, in);
  // The tensor cores truncate sums: each of up to 48 additions changes a logit of 100 by 4e-6.
  double largest = 0.0;
  for (const Doubles& of_row : logits)
    for (const double logit : of_row)
      largest = std::max(largest, std::abs(logit));
  Worst worst;
  for (int row = 0; row < c.rows; ++row)
    compare(worst, c, in, out, logits[row], row, 1e-4 + 4e-6 * largest);
  const std::string name = "vocabulary " + c.name;
  report(name + ": exponentials, worst of limit", worst.exponential, 1.0);
  report(name + ": loss, worst of limit", worst.loss, 1.0);
  report(name + ": factor, worst of limit", worst.factor, 1.0);
  report(name + ": label factor, worst of limit", worst.label_factor, 1.0);
  report(name + ": scaled rows, worst of limit", worst.scaled, 1.0);
  report(name + ": bits at labels", static_cast<double>(worst.at_label), 0.0);
  report(name + ": unknown labels with a loss", static_cast<double>(worst.without_nan), 0.0);
  std::size_t beyond = 0;
  for (std::size_t i = product(c.rows, c.columns); i < out.exponentials.size(); ++i)
    beyond += __bfloat16_as_ushort(out.exponentials[i]) != 0xFFFF;
  report(name + ": values beyond the rows", static_cast<double>(beyond), 0.0);
  report(name + ": other bits again", run(c, in) == out ? 0.0 : 1.0, 0.0);
}

// NaN in a row of x concerns this row's loss alone, and NaN in the weight all losses.
void check_not_a_number() {
  const Case c{"NaN", 300, 384, 128};
  constexpr int kRow = 170;
  const auto nans_with = [&](bool in_weight) {
    Inputs in = inputs_of(c);
    in.x[product(kRow, c.inner) + 5] = __float2bfloat16_rn(in_weight ? 0.0f : NAN);
    if (in_weight) in.weight[product(c.columns - 3, c.inner) + 9] = __float2bfloat16_rn(NAN);
    const Outputs out = run(c, in);
    std::size_t nans = 0;
    for (const float loss : out.loss)
      nans += std::isnan(loss);
    return std::isnan(out.loss[kRow]) ? static_cast<double>(nans) : -1.0;
  };
  report("vocabulary: losses without NaN in x's row", std::abs(nans_with(false) - 1.0), 0.0);
  report("vocabulary: losses without the weight's NaN", std::abs(nans_with(true) - c.rows), 0.0);
}

void check_hidden_gradient() {
  const Case c{"", 333, 256, 192};
  const Inputs in = inputs_of(c);
  std::vector<int64_t> labels = in.labels;
  labels[3] = -100;
  labels[4] = c.columns;
  std::mt19937_64 generator(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(in.x.size()), factors(c.rows), label_factors(c.rows);
  for (std::vector<float>* of : {&values, &factors, &label_factors})
    for (float& value : *of)
      value = normal(generator);
  const auto product_device = on_device(values), factor = on_device(factors),
             label_factor = on_device(label_factors);
  const auto labels_device = on_device(labels);
  const auto weight = on_device(in.weight);
  DeviceBuffer<Bf16> d_x(in.x.size());
  cuda_check(
      launch_hidden_gradient({c.rows, c.columns, c.inner, product_device.get(), factor.get(),
                              label_factor.get(), labels_device.get(), weight.get(), d_x.get()},
                             nullptr),
      "hidden_gradient");
  Doubles wanted(in.x.size());
  for (int row = 0; row < c.rows; ++row)
    for (int i = 0; i < c.inner; ++i) {
      const std::size_t at = product(row, c.inner) + i;
      wanted[at] = to_double(factors[row]) * to_double(values[at]);
      if (labels[row] >= 0 && labels[row] < c.columns)
        wanted[at] += to_double(label_factors[row]) *
                      to_double(in.weight[labels[row] * static_cast<std::size_t>(c.inner) + i]);
    }
  expect_bf16("vocabulary: gradient of x", d_x, wanted);
}

} // namespace

void check_vocabulary_product() {
  check({"1 x 128 x 64", 1, 128, 64}); // half a piece, with fewer steps than stages
  check({"300 x 50,304 x 64", 300, 50304, 64});
  check({"1,000 x 640 x 768", 1000, 640, 768, 3.0});
  check({"4,096 x 1,152 x 256", 4096, 1152, 256}); // some clusters get two pieces
  check({"17,000 x 384 x 64", 17000, 384, 64});
  check({"near 100", 256, 1152, 768, 1.0, 100.0});
  check({"near -100", 256, 1152, 768, 1.0, -100.0});
  check({"improbable", 256, 1152, 768, 8.0, 0.0, true});
  check({"beyond 2^100", 256, 1152, 768, 30.0, 0.0, true});
  check_not_a_number();
  check_hidden_gradient();
}

} // namespace nsa::kernels::check
