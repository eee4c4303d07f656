#include "tests/gpu/kernels/compression_case.h"

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "nsa_model/kernels/learned_compression/learned_compression.h"
#include "tests/gpu/kernels/judge.h"

namespace nsa::kernels::check {
namespace {

constexpr std::size_t kWidth = kHeadDim, kHidden = kCompressionHidden, kHalf = kWidth / 2;
constexpr std::size_t kBlockWidth = kCompressLength * kWidth;

std::mt19937_64 generator(17);

// The same values on the device and, exactly, on the host.
struct Values {
  DeviceBuffer<Bf16> device;
  Doubles host;

  explicit Values(const Doubles& values) : device(values.size()), host(values.size()) {
    std::vector<Bf16> narrow(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      narrow[i] = __double2bfloat16(values[i]);
      host[i] = to_double(narrow[i]);
    }
    device.from_host(narrow);
  }
};
Values random_values(std::size_t count, double deviation) {
  std::normal_distribution<double> normal(0.0, deviation);
  Doubles values(count);
  for (double& value : values)
    value = normal(generator);
  return Values(values);
}

// The inputs, expected results and actual results of keys or values.
struct Side {
  Values x, position, fc1, fc2, d_out;
  Doubles before, out, d_x, d_position, d_fc1, d_fc2;
  DeviceBuffer<Bf16> got_before, got_out, got_d_x, got_d_position, got_d_fc1, got_d_fc2;

  Side(std::size_t tokens, std::size_t rows)
      : x(random_values(tokens * kWidth, 1.0)), position(random_values(kBlockWidth, 0.5)),
        fc1(random_values(kHidden * kBlockWidth, 1.0 / std::sqrt(double(kBlockWidth)))),
        fc2(random_values(kWidth * kHidden, 0.2)), d_out(random_values(rows * kWidth, 1.0)),
        before(rows * kHidden), out(rows * kWidth), d_x(tokens * kWidth), d_position(kBlockWidth),
        d_fc1(kHidden * kBlockWidth), d_fc2(kWidth * kHidden), got_before(before.size()),
        got_out(out.size()), got_d_x(d_x.size()), got_d_position(d_position.size()),
        got_d_fc1(d_fc1.size()), got_d_fc2(d_fc2.size()) {}
};

struct Tables {
  std::vector<float> cos, sin;
};

// Rotates (a, b) by the angle of the tables at `place`, or back if `sign` is -1.
void rotate(double& a, double& b, const Tables& tables, std::size_t place, double sign) {
  const double c = tables.cos[place], s = sign * tables.sin[place], first = a;
  a = first * c - b * s;
  b = b * c + first * s;
}

// Intermediate values that the kernels round to BF16 are rounded here too.
void expect(Side& side, const AttentionShape& shape, const Tables* tables) {
  const auto groups = static_cast<std::size_t>(shape.groups);
  const auto sequence = static_cast<std::size_t>(shape.sequence);
  const auto compressed = static_cast<std::size_t>(compressed_count(shape.sequence));
  Doubles turned(kHidden * kBlockWidth); // fc1 with its columns as rows
  for (std::size_t h = 0; h < kHidden; ++h)
    for (std::size_t k = 0; k < kBlockWidth; ++k)
      turned[k * kHidden + h] = side.fc1.host[h * kBlockWidth + k];
  Doubles block(kBlockWidth), d_block(kBlockWidth), sums(kHidden, 0.0);
  for (std::size_t row = 0; row < side.before.size() / kHidden; ++row) {
    const std::size_t index = row / groups % compressed;
    const std::size_t token =
        (row / groups / compressed * sequence + index * kCompressStride) * groups + row % groups;
    const auto place_of = [&](std::size_t k) {
      return (token + k / kWidth * groups) * kWidth + k % kWidth;
    };
    double* const before = &side.before[row * kHidden];
    for (std::size_t k = 0; k < kBlockWidth; ++k) {
      block[k] = side.x.host[place_of(k)];
      const double value = block[k] + side.position.host[k];
      for (std::size_t h = 0; h < kHidden; ++h)
        before[h] += turned[k * kHidden + h] * value;
    }
    std::array<double, kHidden> hidden{}, part{}, d_hidden{};
    for (std::size_t h = 0; h < kHidden; ++h) {
      const double x = rounded(before[h]);
      part[h] = 1.0 / (1.0 + std::exp(-x));
      hidden[h] = rounded(x * part[h]);
    }
    double* const out = &side.out[row * kWidth];
    std::array<double, kWidth> up{};
    for (std::size_t d = 0; d < kWidth; ++d) {
      for (std::size_t h = 0; h < kHidden; ++h)
        out[d] += side.fc2.host[d * kHidden + h] * hidden[h];
      up[d] = side.d_out.host[row * kWidth + d];
    }
    for (std::size_t d = 0; d < kHalf && tables != nullptr; ++d) {
      rotate(out[d], out[d + kHalf], *tables, index * kHalf + d, 1.0);
      rotate(up[d], up[d + kHalf], *tables, index * kHalf + d, -1.0);
    }
    for (std::size_t d = 0; d < kWidth; ++d) {
      up[d] = rounded(up[d]);
      for (std::size_t h = 0; h < kHidden; ++h) {
        d_hidden[h] += up[d] * side.fc2.host[d * kHidden + h];
        side.d_fc2[d * kHidden + h] += up[d] * hidden[h];
      }
    }
    std::fill(d_block.begin(), d_block.end(), 0.0);
    for (std::size_t h = 0; h < kHidden; ++h) {
      const double x = rounded(before[h]);
      d_hidden[h] *= part[h] * (1.0 + x * (1.0 - part[h]));
      sums[h] += d_hidden[h];
      const double d = rounded(d_hidden[h]);
      for (std::size_t k = 0; k < kBlockWidth; ++k) {
        d_block[k] += d * side.fc1.host[h * kBlockWidth + k];
        side.d_fc1[h * kBlockWidth + k] += d * block[k];
      }
    }
    for (std::size_t k = 0; k < kBlockWidth; ++k)
      side.d_x[place_of(k)] += d_block[k];
  }
  for (std::size_t h = 0; h < kHidden; ++h)
    for (std::size_t k = 0; k < kBlockWidth; ++k) {
      side.d_fc1[h * kBlockWidth + k] += sums[h] * side.position.host[k];
      side.d_position[k] += sums[h] * side.fc1.host[h * kBlockWidth + k];
    }
}

void check(const AttentionShape& shape) {
  const std::string name = "compression " + std::to_string(shape.batch) + " x " +
                           std::to_string(shape.sequence) + ", " + std::to_string(shape.groups) +
                           " groups";
  const auto compressed = static_cast<std::size_t>(compressed_count(shape.sequence));
  const std::size_t kv_heads = static_cast<std::size_t>(shape.batch) * shape.groups;
  Tables tables;
  std::uniform_real_distribution<double> angle(0.0, 6.28);
  for (std::size_t i = 0; i < compressed * kHalf; ++i) {
    const double a = angle(generator);
    tables.cos.push_back(static_cast<float>(std::cos(a)));
    tables.sin.push_back(static_cast<float>(std::sin(a)));
  }
  DeviceBuffer<float> cosines(tables.cos.size()), sines(tables.sin.size()), bias(2 * kHidden);
  cosines.from_host(tables.cos);
  sines.from_host(tables.sin);
  DeviceBuffer<uint8_t> workspace(learned_compression_workspace(shape));
  std::vector<Side> sides;
  LearnedCompressionParams forward{};
  LearnedCompressionBackwardParams backward{};
  forward.shape = backward.shape = shape;
  forward.cos = backward.cos = cosines.get();
  forward.sin = backward.sin = sines.get();
  forward.bias = bias.get();
  backward.workspace = workspace.get();
  std::vector<Values> before; // exact values, so that only the backward is judged
  for (std::size_t i = 0; i < 2; ++i) {
    sides.emplace_back(kv_heads * static_cast<std::size_t>(shape.sequence), kv_heads * compressed);
    Side& s = sides.back();
    expect(s, shape, i == 0 ? &tables : nullptr);
    before.emplace_back(s.before);
    forward.side[i] = {s.x.device.get(),   s.position.device.get(), s.fc1.device.get(),
                       s.fc2.device.get(), s.got_before.get(),      s.got_out.get()};
    backward.side[i] = {s.x.device.get(),   s.position.device.get(),    s.fc1.device.get(),
                        s.fc2.device.get(), before.back().device.get(), s.d_out.device.get(),
                        s.got_d_x.get(),    s.got_d_position.get(),     s.got_d_fc1.get(),
                        s.got_d_fc2.get()};
  }
  cuda_check(launch_learned_compression(forward, nullptr), "learned_compression");
  std::vector<std::vector<Bf16>> first;
  std::size_t other_bits = 0;
  for (int run = 0; run < 2; ++run) {
    workspace.poison();
    for (Side& s : sides)
      for (DeviceBuffer<Bf16>* gradient :
           {&s.got_d_x, &s.got_d_position, &s.got_d_fc1, &s.got_d_fc2})
        gradient->poison();
    cuda_check(launch_learned_compression_backward(backward, nullptr),
               "learned_compression_backward");
    std::size_t next = 0;
    for (const Side& s : sides)
      for (const DeviceBuffer<Bf16>* gradient :
           {&s.got_d_x, &s.got_d_position, &s.got_d_fc1, &s.got_d_fc2}) {
        const std::vector<Bf16> got = gradient->to_host();
        if (run == 0) {
          first.push_back(got);
          continue;
        }
        const std::vector<Bf16>& wanted = first[next++];
        for (std::size_t i = 0; i < got.size(); ++i)
          other_bits += __bfloat16_as_ushort(got[i]) != __bfloat16_as_ushort(wanted[i]);
      }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const Side& s = sides[i];
    const std::string of = name + (i == 0 ? ", keys" : ", values");
    expect_bf16(of + ", before", s.got_before, s.before);
    expect_bf16(of + ", out", s.got_out, s.out);
    expect_bf16(of + ", d_x", s.got_d_x, s.d_x);
    expect_bf16(of + ", d_position", s.got_d_position, s.d_position);
    expect_bf16(of + ", d_fc1", s.got_d_fc1, s.d_fc1);
    expect_bf16(of + ", d_fc2", s.got_d_fc2, s.d_fc2);
  }
  report(name + ": other bits again", static_cast<double>(other_bits), 0.0);
}

} // namespace

void check_learned_compression(int most_tokens) {
  // The cases are: one block; last tokens without a block; sequences whose last run is short; more
  // rows than a tile; several tiles in each part of the sums over blocks.
  for (const auto& [batch, sequence, groups] :
       {std::array{1, 32, 1}, std::array{2, 79, 2}, std::array{3, 705, 3}, std::array{1, 2112, 2},
        std::array{2, 17000, 2}}) {
    if (batch * sequence > most_tokens) continue;
    AttentionShape shape{};
    shape.batch = batch;
    shape.sequence = sequence;
    shape.groups = groups;
    check(shape);
  }
}

} // namespace nsa::kernels::check
