#include "tests/gpu/kernels/update_case.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "nsa_model/kernels/update/update.h"
#include "tests/gpu/kernels/judge.h"

namespace nsa::kernels::check {
namespace {

std::mt19937_64 generator(1125);

// The values of one buffer, exactly on the host and in its type on the device.
struct Buffer {
  bool narrow;
  DeviceBuffer<float> wide;
  DeviceBuffer<Bf16> thin;
  Doubles host;

  Buffer(std::size_t count, bool bf16, double deviation, bool positive = false)
      : narrow(bf16), host(count) {
    std::normal_distribution<double> normal(0.0, deviation);
    std::vector<float> floats(count);
    std::vector<Bf16> bf16s(count);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = positive ? std::abs(normal(generator)) : normal(generator);
      bf16s[i] = __double2bfloat16(value);
      floats[i] = static_cast<float>(value);
      host[i] = narrow ? to_double(bf16s[i]) : to_double(floats[i]);
    }
    if (narrow) {
      thin = DeviceBuffer<Bf16>(count);
      thin.from_host(bf16s);
    } else {
      wide = DeviceBuffer<float>(count);
      wide.from_host(floats);
    }
  }
  void* at(int64_t element) const {
    return narrow ? static_cast<void*>(thin.get() + element) : wide.get() + element;
  }
  double error(const Doubles& expected) const {
    return narrow ? relative_error(thin.to_host(), expected)
                  : relative_error(wide.to_host(), expected);
  }
};

std::vector<uint8_t> two_of_three(std::size_t count) {
  std::vector<uint8_t> marks(count);
  for (std::size_t i = 0; i < count; ++i)
    marks[i] = i % 3 != 0;
  return marks;
}

// The values after an update, in FP64.
struct Updated {
  Doubles values, first, second;
};
Updated updated(const UpdateScalars& s, bool pure, double clip_factor, double updates,
                const std::vector<uint8_t>& marks, const Buffer& values, const Buffer& gradients,
                const Buffer& first, const Buffer& second) {
  const std::size_t count = values.host.size();
  Updated want{Doubles(count), Doubles(count), Doubles(count)};
  for (std::size_t i = 0; i < count; ++i) {
    const double g = (pure ? rounded(gradients.host[i]) : gradients.host[i]) * clip_factor;
    const double decay = marks[i / kSlotElements] != 0 ? s.weight_decay : 0.0;
    want.first[i] = s.beta1 * first.host[i] + (1 - s.beta1) * g;
    want.second[i] = s.beta2 * second.host[i] + (1 - s.beta2) * g * g;
    const double m = want.first[i] / (1 - std::pow(s.beta1, updates));
    const double v = want.second[i] / (1 - std::pow(s.beta2, updates));
    want.values[i] = values.host[i] * (1 - s.learning_rate * decay) -
                     s.learning_rate * m / (std::sqrt(v) + s.epsilon);
  }
  return want;
}

int64_t not_their_masters(const std::vector<Bf16>& weights, const std::vector<float>& masters) {
  int64_t wrong = 0;
  for (std::size_t i = 0; i < masters.size(); ++i)
    wrong += to_double(weights[i]) != to_double(__float2bfloat16_rn(masters[i]));
  return wrong;
}

// The mean of stochastically rounded values is the value itself. Returns the error of the mean in
// steps of BF16.
double drift(const std::vector<Bf16>& left, const Doubles& want) {
  double off = 0.0, steps = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    off += (to_double(left[i]) - want[i]) * (want[i] < 0 ? -1 : 1);
    steps += std::abs(want[i]) * 0x1p-8;
  }
  return std::abs(off) / steps;
}

// Compares the device's values after an update with those in FP64.
void check_adamw(UpdateMode mode, const char* name, double clip, double gradient_scale) {
  constexpr int64_t kCount = 16 * 5003;
  const bool masters = mode == UpdateMode::kMaster || mode == UpdateMode::kFp32;
  const bool pure = mode == UpdateMode::kPure;
  const UpdateScalars s{3e-3, 0.9, 0.95, 0.1, 1e-8, clip};
  const Buffer values(kCount, !masters, 0.05), gradients(kCount, false, gradient_scale);
  const Buffer first(kCount, pure, gradient_scale * 0.3);
  const Buffer second(kCount, pure, gradient_scale * gradient_scale, true);
  DeviceBuffer<Bf16> weights(kCount);
  const std::vector<uint8_t> marks = two_of_three(kCount / kSlotElements);
  DeviceBuffer<uint8_t> decayed(marks.size());
  decayed.from_host(marks);
  DeviceBuffer<float> loss(1), updates(1), partial(update_partials());
  loss.from_host(std::vector<float>{2.5f});
  updates.from_host(std::vector<float>{6.0f});
  DeviceBuffer<UpdateControl> control(1);
  // Two ranges, as a rank has them whose shard lies in several buckets.
  constexpr int64_t kRanges[][2] = {{0, 16 * 1201}, {16 * 1201, kCount - 16 * 1201}};
  DeviceBuffer<float> square_sum(1);
  for (const auto [begin, count] : kRanges) {
    SquareSumParams squares{begin == 0, count, gradients.wide.get() + begin, partial.get()};
    cuda_check(launch_partial_squares(squares, nullptr), "partial_squares");
  }
  cuda_check(launch_square_sum(partial.get(), square_sum.get(), nullptr), "square_sum");
  const UpdateControlParams before{.square_sum = square_sum.get(),
                                   .loss = loss.get(),
                                   .updates = updates.get(),
                                   .control = control.get(),
                                   .scalars = s};
  cuda_check(launch_update_control(before, nullptr), "update_control");
  const auto update = [&] {
    for (const auto [begin, count] : kRanges) {
      AdamWParams params{};
      params.mode = mode;
      params.count = count;
      params.values = values.at(begin);
      params.first_moments = first.at(begin);
      params.second_moments = second.at(begin);
      params.weights = weights.get() + begin;
      params.gradients = gradients.wide.get() + begin;
      params.decayed = decayed.get() + begin / kSlotElements;
      params.updates = updates.get();
      params.control = control.get();
      params.scalars = s;
      params.seed = 11;
      params.offset = static_cast<uint64_t>(begin);
      cuda_check(launch_adamw(params, nullptr), "adamw");
    }
  };
  update();

  constexpr double kT = 7.0;
  double squares = 0.0;
  for (const double g : gradients.host)
    squares += g * g;
  const double norm = std::sqrt(squares);
  const double clip_factor = clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
  const Updated want = updated(s, pure, clip_factor, kT, marks, values, gradients, first, second);
  const std::string what = std::string("update, ") + name + (clip > 0 ? ", clipped" : "");
  const auto got = control.to_host().front();
  report(what + ": norm", std::abs(static_cast<double>(got.norm) - norm) / norm, 1e-5);
  // One rounding to BF16 has an average error of 0.0017, and a stochastic one of 0.0024.
  report(what + ": values", values.error(want.values), masters ? 1e-6 : pure ? 2e-3 : 3e-3);
  report(what + ": first moments", first.error(want.first), pure ? 2.5e-3 : 1e-6);
  report(what + ": second moments", second.error(want.second), pure ? 2.5e-3 : 1e-6);
  if (mode == UpdateMode::kMaster)
    report(what + ": weights that are not their masters",
           static_cast<double>(not_their_masters(weights.to_host(), values.wide.to_host())), 0.0);
  if (mode == UpdateMode::kStochastic)
    report(what + ": drift in steps of BF16", drift(values.thin.to_host(), want.values), 0.01);
  // If the loss is not finite, nothing may change.
  loss.from_host(std::vector<float>{NAN});
  const auto values_before = values.error(want.values);
  cuda_check(launch_update_control(before, nullptr), "update_control");
  update();
  report(what + ": change at a loss that is NaN",
         std::abs(values.error(want.values) - values_before) +
             std::abs(static_cast<double>(updates.to_host().front()) - kT),
         0.0);
}

void check_add_gradients() {
  std::vector<DeviceBuffer<Bf16>> gradients;
  std::vector<Doubles> hosts;
  AddGradientsParams params{};
  int64_t end = 0;
  for (const int64_t count :
       {int64_t{1}, int64_t{16}, int64_t{100003}, int64_t{8192}, int64_t{7}}) {
    const Buffer values(static_cast<std::size_t>(count), true, 1.0);
    std::vector<Bf16> bf16s;
    for (const double value : values.host)
      bf16s.push_back(__double2bfloat16(value));
    gradients.emplace_back(static_cast<std::size_t>(count));
    gradients.back().from_host(bf16s);
    hosts.push_back(values.host);
    params.gradient[params.gradients] = gradients.back().get();
    params.offset[params.gradients] = end;
    params.count[params.gradients++] = count;
    end = (end + count + kSlotElements - 1) / kSlotElements * kSlotElements;
  }
  DeviceBuffer<float> sums(static_cast<std::size_t>(end));
  params.sums = sums.get();
  for (const bool first : {true, false, false}) {
    params.first = first;
    cuda_check(launch_add_gradients(params, nullptr), "add_gradients");
  }
  const std::vector<float> got = sums.to_host();
  int64_t wrong = 0;
  for (int i = 0; i < params.gradients; ++i) {
    const int64_t count = params.count[i], next = (count + 15) / 16 * 16;
    for (int64_t j = 0; j < next; ++j) {
      const float value = got[params.offset[i] + j];
      const float want = j < count ? 3.0f * static_cast<float>(hosts[i][j]) : NAN;
      wrong += j < count ? value != want : !std::isnan(value); // padding must not change
    }
  }
  report("gradients into sums: wrong elements", static_cast<double>(wrong), 0.0);

  // Gradients that are read where they lie give the same bits. Those of gradients 0 and 1 are
  // absent.
  GradientPieces pieces;
  params.first = true;
  cuda_check(cudaMemset(sums.get(), 0, static_cast<std::size_t>(end) * sizeof(float)), "memset");
  cuda_check(launch_add_gradients(params, nullptr), "add_gradients");
  for (const int i : {2, 3}) {
    const int64_t whole = params.count[i] / kPieceElements * kPieceElements;
    pieces.begin[pieces.pieces] = static_cast<uint32_t>(params.offset[i] / kPieceElements);
    pieces.count[pieces.pieces] = static_cast<uint32_t>(whole / kPieceElements);
    pieces.gradient[pieces.pieces++] = params.gradient[i];
    cuda_check(cudaMemset(sums.get() + params.offset[i] + whole, 0,
                          static_cast<std::size_t>(params.count[i] - whole) * sizeof(float)),
               "memset");
  }
  cuda_check(cudaMemset(sums.get(), 0, static_cast<std::size_t>(params.offset[2]) * sizeof(float)),
             "memset");
  DeviceBuffer<float> partial(update_partials()), square_sums(2);
  SquareSumParams squares{};
  squares.count = params.offset[4];
  squares.partial = partial.get();
  squares.gradients = sums.get();
  cuda_check(launch_partial_squares(squares, nullptr), "partial_squares");
  cuda_check(launch_square_sum(partial.get(), square_sums.get(), nullptr), "square_sum");
  squares.pieces = &pieces;
  cuda_check(launch_partial_squares(squares, nullptr), "partial_squares");
  cuda_check(launch_square_sum(partial.get(), square_sums.get() + 1, nullptr), "square_sum");
  const std::vector<float> both = square_sums.to_host();
  report("squares of BF16 pieces: difference to FP32",
         std::abs(static_cast<double>(both[0]) - static_cast<double>(both[1])) +
             (both[0] > 0.0f ? 0.0 : 1.0),
         0.0);
}

} // namespace

void check_update_kernels() {
  check_adamw(UpdateMode::kMaster, "master", 0.0, 1e-3);
  check_adamw(UpdateMode::kMaster, "master", 1.0, 1e-1);
  check_adamw(UpdateMode::kFp32, "fp32", 1.0, 1e-1);
  check_adamw(UpdateMode::kStochastic, "sr", 1.0, 1e-1);
  check_adamw(UpdateMode::kPure, "pure", 1.0, 1e-1);
  check_add_gradients();
}

} // namespace nsa::kernels::check
