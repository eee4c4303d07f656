#include "tests/gpu/kernels/layer_case.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/kernel_cases/measure.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/group_gate/group_gate.h"
#include "nsa_model/kernels/head_split/head_split.h"
#include "nsa_model/kernels/rms_norm/rms_norm.h"
#include "nsa_model/kernels/silu_product/silu_product.h"
#include "tests/gpu/kernels/compression_case.h"
#include "tests/gpu/kernels/embedding_case.h"
#include "tests/gpu/kernels/judge.h"
#include "tests/gpu/kernels/update_case.h"
#include "tests/gpu/kernels/vocabulary_case.h"

namespace nsa::kernels::check {
namespace {

std::mt19937_64 generator(20251121);

// A random tensor, on the device and exactly on the host.
struct Input {
  DeviceBuffer<Bf16> device;
  Doubles host;

  explicit Input(std::size_t count, double deviation = 1.0, double mean = 0.0)
      : device(count), host(count) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<Bf16> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = __double2bfloat16(normal(generator));
      host[i] = static_cast<double>(__bfloat162float(values[i]));
    }
    device.from_host(values);
  }
};

template <typename T> DeviceBuffer<T> on_device(const std::vector<T>& host) {
  DeviceBuffer<T> buffer(host.size());
  buffer.from_host(host);
  return buffer;
}

void check_norm(int rows, int columns, bool addend, bool d_sum) {
  const std::string name = "norm " + std::to_string(rows) + " x " + std::to_string(columns) +
                           (addend ? " + addend" : "") + (d_sum ? " + d_sum" : "");
  const std::size_t count = static_cast<std::size_t>(rows) * columns;
  const double epsilon = 1e-6;
  const Input x(count), more(count, 0.5), gain(columns, 0.2, 1.0), d_normed(count), d_more(count);
  DeviceBuffer<Bf16> sum(count), normed(count), d_x(count), d_gain(columns);
  DeviceBuffer<float> inverse(rows), partial(rms_norm_partials(columns));
  AddRmsNormParams forward{};
  forward.rows = rows;
  forward.columns = columns;
  forward.epsilon = static_cast<float>(epsilon);
  forward.x = x.device.get();
  forward.addend = addend ? more.device.get() : nullptr;
  forward.gain = gain.device.get();
  forward.sum = sum.get();
  forward.normed = normed.get();
  forward.inverse = inverse.get();
  cuda_check(launch_add_rms_norm(forward, nullptr), "add_rms_norm");
  AddRmsNormBackwardParams backward{};
  backward.rows = rows;
  backward.columns = columns;
  backward.d_normed = d_normed.device.get();
  backward.d_sum = d_sum ? d_more.device.get() : nullptr;
  backward.sum = addend ? sum.get() : x.device.get();
  backward.inverse = inverse.get();
  backward.gain = gain.device.get();
  backward.d_x = d_x.get();
  backward.partial = partial.get();
  backward.d_gain = d_gain.get();
  cuda_check(launch_add_rms_norm_backward(backward, nullptr), "add_rms_norm_backward");

  Doubles want_sum(count), want_normed(count), want_d_x(count), want_d_gain(columns, 0.0);
  for (int row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    double squares = 0.0, along = 0.0;
    for (int c = 0; c < columns; ++c) {
      const double s = addend ? rounded(x.host[at + c] + more.host[at + c]) : x.host[at + c];
      want_sum[at + c] = s;
      squares += s * s;
    }
    const double scale = 1.0 / std::sqrt(squares / columns + epsilon);
    for (int c = 0; c < columns; ++c) {
      const double unit = want_sum[at + c] * scale;
      want_normed[at + c] = unit * gain.host[c];
      want_d_gain[c] += d_normed.host[at + c] * unit;
      along += d_normed.host[at + c] * gain.host[c] * unit / columns;
    }
    for (int c = 0; c < columns; ++c)
      want_d_x[at + c] =
          scale * (d_normed.host[at + c] * gain.host[c] - along * want_sum[at + c] * scale) +
          (d_sum ? d_more.host[at + c] : 0.0);
  }
  if (addend) expect_bf16(name + ", sum", sum, want_sum);
  expect_bf16(name + ", normed", normed, want_normed);
  expect_bf16(name + ", d_x", d_x, want_d_x);
  expect_bf16(name + ", d_gain", d_gain, want_d_gain);
}

void check_cross_entropy(int rows, int columns, double deviation) {
  const std::string name = "cross-entropy " + std::to_string(rows) + " x " +
                           std::to_string(columns) + ", deviation " + std::to_string(deviation);
  const std::size_t count = static_cast<std::size_t>(rows) * columns;
  Input logits(count, deviation);
  std::vector<int64_t> labels(rows);
  std::vector<float> weight(rows);
  for (int row = 0; row < rows; ++row) {
    labels[row] = row == 0 ? columns - 1 : static_cast<int64_t>(generator() % columns);
    weight[row] = row % 5 == 4 ? 0.0f : 1.0f / static_cast<float>(rows);
  }
  const auto labels_device = on_device(labels);
  const auto weight_device = on_device(weight);
  DeviceBuffer<float> loss(rows), loss_alone(rows);
  CrossEntropyParams params{};
  params.rows = rows;
  params.columns = columns;
  params.logits = logits.device.get();
  params.labels = labels_device.get();
  params.weight = weight_device.get();
  params.loss = loss_alone.get();
  cuda_check(launch_cross_entropy(params, nullptr), "cross_entropy without gradient");
  params.loss = loss.get();
  params.gradient = true;
  cuda_check(launch_cross_entropy(params, nullptr), "cross_entropy");

  Doubles want_loss(rows), want_gradient(count);
  for (int row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    double peak = -INFINITY, sum = 0.0;
    for (int c = 0; c < columns; ++c)
      peak = std::max(peak, logits.host[at + c]);
    for (int c = 0; c < columns; ++c)
      sum += std::exp(logits.host[at + c] - peak);
    want_loss[row] = weight[row] * (peak + std::log(sum) - logits.host[at + labels[row]]);
    for (int c = 0; c < columns; ++c)
      want_gradient[at + c] = weight[row] * (std::exp(logits.host[at + c] - peak) / sum -
                                             (c == labels[row] ? 1.0 : 0.0));
  }
  expect_fp32(name + ", loss", loss, want_loss);
  expect_fp32(name + ", loss without gradient", loss_alone, want_loss);
  expect_bf16(name + ", gradient", logits.device, want_gradient);
}

void check_unknown_label() {
  Input logits(2 * 64);
  const auto labels = on_device<int64_t>({64, -1});
  const auto weight = on_device<float>({1.0f, 1.0f});
  DeviceBuffer<float> loss(2);
  CrossEntropyParams params{};
  params.rows = 2;
  params.columns = 64;
  params.logits = logits.device.get();
  params.labels = labels.get();
  params.weight = weight.get();
  params.loss = loss.get();
  params.gradient = true;
  cuda_check(launch_cross_entropy(params, nullptr), "cross_entropy");
  const std::vector<float> got = loss.to_host();
  report("labels outside the vocabulary that give a number",
         static_cast<double>(!std::isnan(got[0]) + !std::isnan(got[1])), 0.0);
}

void check_gate(int64_t rows, int heads, double temperature) {
  constexpr int kWidth = kGateWidth, kHidden = kGateHidden, kBranches = kGateBranches;
  const std::string name =
      "gate " + std::to_string(rows) + " rows, " + std::to_string(heads) + " heads";
  const Input mean(rows * kWidth), fc1(kHidden * kWidth, 0.125), fc2(kBranches * kHidden, 0.5);
  std::vector<float> up(rows * heads * kBranches);
  for (float& value : up)
    value = static_cast<float>(generator() % 2001) * 1e-3f - 1.0f;
  const auto up_device = on_device(up);
  DeviceBuffer<float> gates(up.size()), partial(group_gate_partials());
  DeviceBuffer<Bf16> d_mean(mean.host.size()), d_fc1(fc1.host.size()), d_fc2(fc2.host.size());
  GroupGateParams forward{};
  forward.rows = rows;
  forward.heads = heads;
  forward.inverse_temperature = static_cast<float>(1.0 / temperature);
  forward.mean = mean.device.get();
  forward.fc1 = fc1.device.get();
  forward.fc2 = fc2.device.get();
  forward.gates = gates.get();
  cuda_check(launch_group_gate(forward, nullptr), "group_gate");
  GroupGateBackwardParams backward{};
  backward.rows = rows;
  backward.heads = heads;
  backward.inverse_temperature = forward.inverse_temperature;
  backward.d_gates = up_device.get();
  backward.gates = gates.get();
  backward.mean = mean.device.get();
  backward.fc1 = fc1.device.get();
  backward.fc2 = fc2.device.get();
  backward.partial = partial.get();
  backward.d_mean = d_mean.get();
  backward.d_fc1 = d_fc1.get();
  backward.d_fc2 = d_fc2.get();
  cuda_check(launch_group_gate_backward(backward, nullptr), "group_gate_backward");

  Doubles want_gates(up.size()), want_d_mean(mean.host.size(), 0.0);
  Doubles want_d_fc1(fc1.host.size(), 0.0), want_d_fc2(fc2.host.size(), 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    const double* m = &mean.host[row * kWidth];
    double before[kHidden], part[kHidden], gate[kBranches] = {}, d_score[kBranches] = {};
    for (int h = 0; h < kHidden; ++h) {
      before[h] = 0.0;
      for (int i = 0; i < kWidth; ++i)
        before[h] += fc1.host[h * kWidth + i] * m[i];
      part[h] = 1.0 / (1.0 + std::exp(-before[h]));
      for (int b = 0; b < kBranches; ++b)
        gate[b] += fc2.host[b * kHidden + h] * before[h] * part[h];
    }
    double sum = 0.0, along = 0.0;
    for (double& g : gate)
      sum += g = std::exp(g / temperature);
    for (int b = 0; b < kBranches; ++b) {
      gate[b] /= sum;
      for (int head = 0; head < heads; ++head) {
        const std::size_t at = (row * heads + head) * kBranches + b;
        want_gates[at] = gate[b];
        d_score[b] += static_cast<double>(up[at]);
      }
      along += gate[b] * d_score[b];
    }
    for (int b = 0; b < kBranches; ++b)
      d_score[b] = gate[b] * (d_score[b] - along) / temperature;
    for (int h = 0; h < kHidden; ++h) {
      double d = 0.0;
      for (int b = 0; b < kBranches; ++b) {
        want_d_fc2[b * kHidden + h] += d_score[b] * before[h] * part[h];
        d += d_score[b] * fc2.host[b * kHidden + h];
      }
      d *= part[h] * (1.0 + before[h] * (1.0 - part[h]));
      for (int i = 0; i < kWidth; ++i) {
        want_d_fc1[h * kWidth + i] += d * m[i];
        want_d_mean[row * kWidth + i] += d * fc1.host[h * kWidth + i];
      }
    }
  }
  expect_fp32(name, gates, want_gates);
  expect_bf16(name + ", d_mean", d_mean, want_d_mean);
  expect_bf16(name + ", d_fc1", d_fc1, want_d_fc1);
  expect_bf16(name + ", d_fc2", d_fc2, want_d_fc2);
}

std::size_t different_bits(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += __bfloat16_as_ushort(a[i]) != __bfloat16_as_ushort(b[i]);
  return count;
}

void check_silu_product(int rows, int columns, int inner) {
  const std::string name = "product with SiLU " + std::to_string(rows) + " x " +
                           std::to_string(columns) + " x " + std::to_string(inner);
  const auto count = [](int a, int b) { return static_cast<std::size_t>(a) * b; };
  const Input x(count(rows, inner)), weight(count(columns, inner), 1.0 / std::sqrt(inner));
  const Input d_out(count(rows, inner)), before_in(count(rows, columns), 1.5);
  const Input turned(count(inner, columns), 1.0 / std::sqrt(inner)); // for the second product
  DeviceBuffer<Bf16> before(count(rows, columns)), after(before.size()), d_before(before.size());
  cuda_check(launch_silu_product({rows, columns, inner, x.device.get(), weight.device.get(),
                                  before.get(), after.get()},
                                 nullptr),
             "silu_product");
  cuda_check(
      launch_silu_product_backward({rows, columns, inner, d_out.device.get(), turned.device.get(),
                                    before_in.device.get(), d_before.get(), nullptr},
                                   nullptr),
      "silu_product_backward");
  DeviceBuffer<Bf16> again(before.size()), after_again(before.size());
  cuda_check(
      launch_silu_product_backward({rows, columns, inner, d_out.device.get(), turned.device.get(),
                                    before.get(), again.get(), after_again.get()},
                                   nullptr),
      "silu_product_backward");
  const std::size_t other_bits = different_bits(after_again.to_host(), after.to_host());
  cuda_check(
      launch_silu_product_backward({rows, columns, inner, d_out.device.get(), turned.device.get(),
                                    before_in.device.get(), again.get(), after_again.get()},
                                   nullptr),
      "silu_product_backward");
  report(name + ": after again, other bits", static_cast<double>(other_bits), 0.0);
  report(name + ": d_before with it, other bits",
         static_cast<double>(different_bits(again.to_host(), d_before.to_host())), 0.0);
  Doubles want_before(before.size()), want_after(before.size()), want_d(before.size());
  Doubles turned_back(turned.host.size()); // transposed, so that sums run along rows
  for (std::size_t i = 0; i < turned_back.size(); ++i)
    turned_back[i] = turned.host[i % inner * columns + i / inner];
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      double product = 0.0, up = 0.0;
      for (int i = 0; i < inner; ++i) {
        product += x.host[count(row, inner) + i] * weight.host[count(column, inner) + i];
        up += d_out.host[count(row, inner) + i] * turned_back[count(column, inner) + i];
      }
      const std::size_t at = count(row, columns) + column;
      want_before[at] = product;
      const double h = before_in.host[at], part = 1.0 / (1.0 + std::exp(-h));
      want_d[at] = up * part * (1.0 + h * (1.0 - part));
    }
  expect_bf16(name + ", before", before, want_before);
  const std::vector<Bf16> kept = before.to_host();
  for (std::size_t i = 0; i < kept.size(); ++i)
    want_after[i] = to_double(kept[i]) / (1.0 + std::exp(-to_double(kept[i])));
  expect_bf16(name + ", after", after, want_after);
  expect_bf16(name + ", d_before", d_before, want_d);
}

struct Split {
  int batch, sequence, heads, groups, head_dim, sets, rotated;
  bool mean, table_per_token;
};

void check_split(const Split& c) {
  const std::string name = "split " + std::to_string(c.batch) + " x " + std::to_string(c.sequence) +
                           ", " + std::to_string(c.heads) + " heads, " + std::to_string(c.sets) +
                           " sets";
  const int64_t tokens = int64_t{c.batch} * c.sequence;
  const int all = c.heads + c.sets * c.groups, d = c.head_dim, half = d / 2;
  const int width = c.heads / c.groups;
  const Input joined(static_cast<std::size_t>(tokens) * all * d);
  const int64_t table_rows = c.table_per_token ? tokens : c.sequence;
  std::vector<float> cosines(table_rows * half), sines(table_rows * half);
  for (std::size_t i = 0; i < cosines.size(); ++i) {
    const double angle = static_cast<double>(generator() % 100000) * 1e-3;
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
  const auto cos_device = on_device(cosines), sin_device = on_device(sines);
  HeadSplitParams forward{};
  HeadLayout& layout = forward.layout;
  layout = {tokens, c.sequence, c.heads,           c.groups,         d,
            c.sets, c.rotated,  c.table_per_token, cos_device.get(), sin_device.get()};
  HeadSplitBackwardParams backward{};
  backward.layout = layout;
  const std::size_t set_size = static_cast<std::size_t>(tokens) * c.groups * d;
  DeviceBuffer<Bf16> q(static_cast<std::size_t>(tokens) * c.heads * d), mean(set_size);
  DeviceBuffer<Bf16> d_joined(joined.host.size());
  std::vector<DeviceBuffer<Bf16>> sets;
  const Input d_q(q.size()), d_mean(set_size);
  std::vector<Input> d_sets;
  for (int s = 0; s < c.sets; ++s) {
    sets.emplace_back(set_size);
    d_sets.emplace_back(set_size);
    forward.set[s] = sets.back().get();
    backward.d_set[s] = d_sets.back().device.get();
  }
  forward.joined = joined.device.get();
  forward.q = q.get();
  forward.mean = c.mean ? mean.get() : nullptr;
  backward.d_q = d_q.device.get();
  backward.d_mean = c.mean ? d_mean.device.get() : nullptr;
  backward.d_joined = d_joined.get();
  cuda_check(launch_head_split(forward, nullptr), "head_split");
  cuda_check(launch_head_split_backward(backward, nullptr), "head_split_backward");

  Doubles want_q(q.size()), want_mean(set_size, 0.0), want_joined(joined.host.size());
  std::vector<Doubles> want_sets(c.sets, Doubles(set_size));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = (c.table_per_token ? t : t % c.sequence) * half;
    for (int h = 0; h < all; ++h) {
      const int set = h < c.heads ? -1 : (h - c.heads) / c.groups;
      const int within = h < c.heads ? h : (h - c.heads) % c.groups;
      const int64_t from = (t * all + h) * d;
      const int64_t to = (t * (set < 0 ? c.heads : c.groups) + within) * d;
      const Doubles& d_from = set < 0 ? d_q.host : d_sets[set].host;
      Doubles& target = set < 0 ? want_q : want_sets[set];
      for (int i = 0; i < half; ++i) {
        const bool turned = set < c.rotated;
        const double co = turned ? cosines[row + i] : 1.0, si = turned ? sines[row + i] : 0.0;
        const double a = joined.host[from + i], b = joined.host[from + half + i];
        target[to + i] = a * co - b * si;
        target[to + half + i] = b * co + a * si;
        const double da = d_from[to + i], db = d_from[to + half + i];
        double* back = &want_joined[from];
        back[i] = da * co + db * si;
        back[half + i] = db * co - da * si;
        if (!c.mean || set >= 0) continue;
        const int64_t group = (t * c.groups + h / width) * d;
        want_mean[group + i] += a / width;
        want_mean[group + half + i] += b / width;
        back[i] += d_mean.host[group + i] / width;
        back[half + i] += d_mean.host[group + half + i] / width;
      }
    }
  }
  expect_bf16(name + ", q", q, want_q);
  for (int s = 0; s < c.sets; ++s)
    expect_bf16(name + ", set " + std::to_string(s), sets[s], want_sets[s]);
  if (c.mean) expect_bf16(name + ", mean", mean, want_mean);
  expect_bf16(name + ", d_joined", d_joined, want_joined);
}

} // namespace

int check_layer_kernels() {
  for (const bool addend : {false, true})
    for (const bool d_sum : {false, true})
      check_norm(37, 768, addend, d_sum);
  check_norm(1, 256, true, true);
  check_norm(5000, 512, true, true);
  check_norm(2113, 1024, true, true);
  check_cross_entropy(33, 50304, 2.0);
  check_cross_entropy(9, 50304, 30.0);
  check_cross_entropy(7, 1000, 1.0);
  check_cross_entropy(3, 8, 1.0);
  check_unknown_label();
  check_silu_product(256, 256, 64); // some CTAs get a tile, others none
  check_silu_product(1024, 768, 192);
  // On 132 SMs, 70 tiles are one round and a second one of half tiles, in which stages and tiles
  // end at different steps. 140 tiles have fewer steps than stages, so the order of the warpgroups
  // is arbitrary.
  check_silu_product(17920, 256, 320);
  check_silu_product(17920, 512, 64);
  check_gate(1, 6, 1.0);
  check_gate(333, 6, 0.8);
  check_gate(30011, 4, 1.5); // several tiles per CTA
  check_split({2, 61, 12, 2, 64, 6, 3, true, false});
  check_split({2, 61, 12, 2, 64, 6, 2, true, true});
  check_split({1, 77, 12, 2, 64, 2, 1, false, false});
  check_split({3, 9, 8, 4, 32, 4, 2, true, false});
  check_split({1, 5, 4, 1, 128, 6, 6, true, false});
  check_update_kernels();
  check_embedding_gradient();
  check_learned_compression();
  check_vocabulary_product();
  std::printf("kernels around attention: %d failures\n", failures());
  return failures();
}

} // namespace nsa::kernels::check
