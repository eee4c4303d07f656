#include "tests/gpu/kernels/embedding_case.h"

#include <random>
#include <string>
#include <vector>

#include "bench/kernel_cases/text_ids.h"
#include "nsa_model/kernels/embedding_gradient/embedding_gradient.h"
#include "tests/gpu/kernels/judge.h"

namespace nsa::kernels::check {
namespace {

struct Case {
  std::string name;
  int rows, columns;
  Ids ids;
  bool base;
};

void check(const Case& c) {
  std::mt19937_64 generator(31);
  std::normal_distribution<double> normal;
  const std::size_t width = static_cast<std::size_t>(c.columns), tokens = c.ids.size();
  const std::size_t count = static_cast<std::size_t>(c.rows) * width;
  constexpr double kScale = 0.25;
  std::vector<Bf16> d_out(tokens * width);
  for (Bf16& value : d_out)
    value = __double2bfloat16(normal(generator));
  Doubles wanted(count, 0.0);
  std::vector<float> base(count);
  for (std::size_t i = 0; i < count; ++i) {
    base[i] = static_cast<float>(normal(generator));
    if (c.base) wanted[i] = kScale * static_cast<double>(base[i]);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    if (c.ids[t] < 0 || c.ids[t] >= c.rows) continue;
    for (std::size_t k = 0; k < width; ++k)
      wanted[static_cast<std::size_t>(c.ids[t]) * width + k] += to_double(d_out[t * width + k]);
  }
  DeviceBuffer<int64_t> ids(tokens);
  ids.from_host(c.ids);
  DeviceBuffer<Bf16> up(d_out.size()), d_table(count);
  up.from_host(d_out);
  DeviceBuffer<float> other(count), scale(1);
  other.from_host(base);
  scale.from_host({static_cast<float>(kScale)});
  DeviceBuffer<int32_t> workspace(embedding_gradient_workspace(static_cast<int>(tokens), c.rows));
  EmbeddingGradientParams params{};
  params.tokens = static_cast<int>(tokens);
  params.rows = c.rows;
  params.columns = c.columns;
  params.ids = ids.get();
  params.d_out = up.get();
  params.base = c.base ? other.get() : nullptr;
  params.scale = c.base ? scale.get() : nullptr;
  params.workspace = workspace.get();
  params.d_table = d_table.get();
  std::vector<Bf16> first;
  std::size_t other_bits = 0;
  for (int run = 0; run < 3; ++run) { // the bits must not depend on the order of the atomics
    workspace.poison();
    d_table.poison();
    cuda_check(launch_embedding_gradient(params, nullptr), "embedding_gradient");
    const std::vector<Bf16> got = d_table.to_host();
    if (run == 0) first = got;
    for (std::size_t i = 0; i < count; ++i)
      other_bits += __bfloat16_as_ushort(got[i]) != __bfloat16_as_ushort(first[i]);
  }
  expect_bf16(c.name, d_table, wanted);
  report(c.name + ": other bits again", static_cast<double>(other_bits), 0.0);
}

} // namespace

void check_embedding_gradient() {
  Ids apart(200), outside(100);
  for (std::size_t t = 0; t < apart.size(); ++t)
    apart[t] = static_cast<int64_t>(t * 37 % 500);
  for (std::size_t t = 0; t < outside.size(); ++t)
    outside[t] = static_cast<int64_t>(t) - 30; // below, in and above 0 .. 49
  Ids border;                                  // rows 0 to 3 in turn, with 31, 32, 33 and 34 tokens
  for (int round = 0; round < 34; ++round)
    for (int row = 0; row < 4; ++row)
      if (round < 31 + row) border.push_back(row);
  const std::vector<Case> cases = {
      {"embedding, one token", 9, 768, {4}, true},
      {"embedding, every row once or never", 500, 768, apart, true},
      {"embedding, without the other use", 500, 256, apart, false},
      {"embedding, 31 to 34 tokens of a row", 8, 512, border, true},
      {"embedding, all of one row", 70, 768, Ids(5000, 69), true},
      {"embedding, ids outside the table", 50, 1024, outside, true},
      {"embedding, like text", 3001, 768, like_text(20000, 3001, 1), true},
      {"embedding, 65,536 tokens like text", 5000, 256, like_text(65536, 5000, 2), true},
      {"embedding, 150,000 tokens like text", 5000, 256, like_text(150000, 5000, 3), true},
      {"embedding, 131,080 of one row", 3, 256, Ids(131080, 1), true}};
  for (const Case& c : cases)
    check(c);
}

} // namespace nsa::kernels::check
