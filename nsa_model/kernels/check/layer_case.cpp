#include "nsa_model/kernels/check/layer_case.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "nsa_model/kernels/check/measure.h"
#include "nsa_model/kernels/check/timing.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/head_split/head_split.h"
#include "nsa_model/kernels/rms_norm/rms_norm.h"

namespace nsa::kernels::check {
namespace {

using Doubles = std::vector<double>;
using Bf16 = __nv_bfloat16;

int failures = 0;
std::mt19937_64 generator(20251121);

double rounded(double value) {
  return static_cast<double>(__bfloat162float(__double2bfloat16(value)));
}

// A random tensor on the device and, exactly, on the host.
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

double to_double(Bf16 value) {
  return static_cast<double>(__bfloat162float(value));
}
double to_double(float value) {
  return static_cast<double>(value);
}

// ||value - expected|| / ||expected||, NaN when a value is not finite; the plain norm for zeros.
template <typename T> double relative_error(const std::vector<T>& value, const Doubles& expected) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = to_double(value[i]) - expected[i];
    difference += error * error;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(norm > 0.0 ? difference / norm : difference);
}

void report(const std::string& what, double error, double limit) {
  const bool good = error <= limit; // false for NaN
  if (!good) ++failures;
  std::printf("  %-44s %s relative %.3g, limit %.3g\n", what.c_str(), good ? "ok  " : "FAIL", error,
              limit);
}
// A BF16 result may be 1.5 times as wrong as the exact one rounded.
void expect_bf16(const std::string& what, const DeviceBuffer<Bf16>& value,
                 const Doubles& expected) {
  std::vector<Bf16> best(expected.size());
  for (std::size_t i = 0; i < best.size(); ++i)
    best[i] = __double2bfloat16(expected[i]);
  report(what, relative_error(value.to_host(), expected),
         1.5 * relative_error(best, expected) + 1e-12);
}
void expect_fp32(const std::string& what, const DeviceBuffer<float>& value,
                 const Doubles& expected) {
  report(what, relative_error(value.to_host(), expected), 1e-5);
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
  std::vector<float> share(rows);
  for (int row = 0; row < rows; ++row) {
    labels[row] = row == 0 ? columns - 1 : static_cast<int64_t>(generator() % columns);
    share[row] = row % 5 == 4 ? 0.0f : 1.0f / static_cast<float>(rows);
  }
  const auto labels_device = on_device(labels);
  const auto share_device = on_device(share);
  DeviceBuffer<float> loss(rows), loss_alone(rows);
  CrossEntropyParams params{};
  params.rows = rows;
  params.columns = columns;
  params.logits = logits.device.get();
  params.labels = labels_device.get();
  params.share = share_device.get();
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
    want_loss[row] = share[row] * (peak + std::log(sum) - logits.host[at + labels[row]]);
    for (int c = 0; c < columns; ++c)
      want_gradient[at + c] = share[row] * (std::exp(logits.host[at + c] - peak) / sum -
                                            (c == labels[row] ? 1.0 : 0.0));
  }
  expect_fp32(name + ", loss", loss, want_loss);
  expect_fp32(name + ", loss without gradient", loss_alone, want_loss);
  expect_bf16(name + ", gradient", logits.device, want_gradient);
}

void check_unknown_label() {
  Input logits(2 * 64);
  const auto labels = on_device<int64_t>({64, -1});
  const auto share = on_device<float>({1.0f, 1.0f});
  DeviceBuffer<float> loss(2);
  CrossEntropyParams params{};
  params.rows = 2;
  params.columns = 64;
  params.logits = logits.device.get();
  params.labels = labels.get();
  params.share = share.get();
  params.loss = loss.get();
  params.gradient = true;
  cuda_check(launch_cross_entropy(params, nullptr), "cross_entropy");
  const std::vector<float> got = loss.to_host();
  const bool good = std::isnan(got[0]) && std::isnan(got[1]);
  if (!good) ++failures;
  std::printf("  %-44s %s\n", "labels outside the vocabulary give NaN", good ? "ok  " : "FAIL");
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

void line(const char* what, const Timing& t, double bytes) {
  std::printf("  %-24s %8.1f us (%.1f-%.1f)  %5.2f TB/s\n", what, 1e3 * t.median, 1e3 * t.low,
              1e3 * t.high, bytes / (t.median * 1e9));
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
  check_split({2, 61, 12, 2, 64, 6, 3, true, false});
  check_split({2, 61, 12, 2, 64, 6, 2, true, true});
  check_split({1, 77, 12, 2, 64, 2, 1, false, false});
  check_split({3, 9, 8, 4, 32, 4, 2, true, false});
  check_split({1, 5, 4, 1, 128, 6, 6, true, false});
  std::printf("kernels around attention: %d failures\n", failures);
  return failures;
}

void time_layer_kernels(int tokens) {
  constexpr int kWidth = 768, kVocabulary = 50304, kChunk = 8192, kRepeats = 20;
  const std::size_t count = static_cast<std::size_t>(tokens) * kWidth;
  const double pass = 2.0 * static_cast<double>(count);
  const Input gain(kWidth, 0.2, 1.0);
  std::vector<DeviceBuffer<Bf16>> rows;
  for (int i = 0; i < 9; ++i) {
    rows.emplace_back(2 * count);
    fill_normal(rows.back().get(), 2 * count, 1.0f, 100 + static_cast<uint64_t>(i));
  }
  DeviceBuffer<float> inverse(tokens), partial(rms_norm_partials(kWidth));
  DeviceBuffer<Bf16> d_gain(kWidth);
  AddRmsNormParams norm{};
  norm.rows = tokens;
  norm.columns = kWidth;
  norm.epsilon = 1e-6f;
  norm.x = rows[0].get();
  norm.addend = rows[1].get();
  norm.gain = gain.device.get();
  norm.sum = rows[2].get();
  norm.normed = rows[3].get();
  norm.inverse = inverse.get();
  line("norm", time_of([&] { cuda_check(launch_add_rms_norm(norm, nullptr), "norm"); }, kRepeats),
       4 * pass);
  AddRmsNormBackwardParams back{};
  back.rows = tokens;
  back.columns = kWidth;
  back.d_normed = rows[4].get();
  back.d_sum = rows[5].get();
  back.sum = rows[2].get();
  back.inverse = inverse.get();
  back.gain = gain.device.get();
  back.d_x = rows[6].get();
  back.partial = partial.get();
  back.d_gain = d_gain.get();
  line("norm backward",
       time_of([&] { cuda_check(launch_add_rms_norm_backward(back, nullptr), "norm"); }, kRepeats),
       4 * pass);

  const DeviceBuffer<float> table = on_device(std::vector<float>(2048 * 32, 0.5f));
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
  line("head split",
       time_of([&] { cuda_check(launch_head_split(split, nullptr), "split"); }, kRepeats),
       4.17 * pass);
  line("head split backward",
       time_of([&] { cuda_check(launch_head_split_backward(join, nullptr), "join"); }, kRepeats),
       4.17 * pass);

  DeviceBuffer<Bf16> logits(static_cast<std::size_t>(kChunk) * kVocabulary);
  fill_normal(logits.get(), logits.size(), 2.0f, 99); // each run leaves gradients to the next
  const auto labels = on_device(std::vector<int64_t>(kChunk, 17));
  const auto share = on_device(std::vector<float>(kChunk, 1.0f / kChunk));
  DeviceBuffer<float> loss(kChunk);
  CrossEntropyParams entropy{};
  entropy.rows = kChunk;
  entropy.columns = kVocabulary;
  entropy.logits = logits.get();
  entropy.labels = labels.get();
  entropy.share = share.get();
  entropy.loss = loss.get();
  entropy.gradient = true;
  line("cross-entropy of 8,192",
       time_of([&] { cuda_check(launch_cross_entropy(entropy, nullptr), "loss"); }, kRepeats),
       4.0 * static_cast<double>(logits.size()));
}

} // namespace nsa::kernels::check
