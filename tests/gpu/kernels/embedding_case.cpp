#include "tests/gpu/kernels/embedding_case.h"

#include <cmath>
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
  Ids others = {}; // ids of the second list
};

// The second list on the device: multiples of rows, with factors like a loss's.
struct Others {
  DeviceBuffer<int64_t> ids;
  DeviceBuffer<Bf16> rows;
  DeviceBuffer<float> factors;

  // Adds them to `wanted`.
  Others(const Case& c, double scale, std::mt19937_64& generator, Doubles& wanted)
      : ids(c.others.size()), rows(c.others.size() * static_cast<std::size_t>(c.columns)),
        factors(c.others.size()) {
    if (c.others.empty()) return;
    std::normal_distribution<double> normal;
    const std::size_t width = static_cast<std::size_t>(c.columns);
    std::vector<Bf16> host(c.others.size() * width);
    std::vector<float> of_row(c.others.size());
    for (std::size_t i = 0; i < c.others.size(); ++i) {
      of_row[i] = static_cast<float>(-std::abs(normal(generator)));
      for (std::size_t k = 0; k < width; ++k) {
        host[i * width + k] = __double2bfloat16(normal(generator));
        if (c.others[i] < 0 || c.others[i] >= c.rows) continue;
        wanted[static_cast<std::size_t>(c.others[i]) * width + k] +=
            scale * to_double(of_row[i]) * to_double(host[i * width + k]);
      }
    }
    ids.from_host(c.others);
    rows.from_host(host);
    factors.from_host(of_row);
  }
  void add_to(EmbeddingGradientParams& params) const {
    params.others = static_cast<int>(ids.size());
    params.other_ids = ids.get();
    params.other_rows = rows.get();
    params.other_factors = factors.get();
  }
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
  const Others others(c, kScale, generator, wanted);
  DeviceBuffer<int32_t> workspace(
      embedding_gradient_workspace(static_cast<int>(tokens + c.others.size()), c.rows, c.columns));
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
  if (!c.others.empty()) others.add_to(params);
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

// A second list whose ids are of no row changes no bit.
void check_rows_of_no_id() {
  constexpr int kRows = 300, kColumns = 256, kTokens = 2000;
  const Case c{"", kRows, kColumns, like_text(kTokens, kRows, 6), true, Ids(kTokens, -1)};
  std::mt19937_64 generator(32);
  std::normal_distribution<float> normal;
  std::vector<Bf16> d_out(std::size_t{kTokens} * kColumns);
  for (Bf16& value : d_out)
    value = __float2bfloat16(normal(generator));
  std::vector<float> base(std::size_t{kRows} * kColumns);
  for (float& value : base)
    value = normal(generator);
  Doubles none;
  const Others others(c, 1.0, generator, none);
  DeviceBuffer<int64_t> ids(c.ids.size());
  ids.from_host(c.ids);
  DeviceBuffer<Bf16> up(d_out.size()), d_table(base.size());
  up.from_host(d_out);
  DeviceBuffer<float> other(base.size()), scale(1);
  other.from_host(base);
  scale.from_host({0.3f});
  DeviceBuffer<int32_t> workspace(embedding_gradient_workspace(2 * kTokens, kRows, kColumns));
  EmbeddingGradientParams params{kTokens,     kRows,       kColumns,        ids.get(),    up.get(),
                                 other.get(), scale.get(), workspace.get(), d_table.get()};
  cuda_check(launch_embedding_gradient(params, nullptr), "embedding_gradient");
  const std::vector<Bf16> alone = d_table.to_host();
  others.add_to(params);
  d_table.poison();
  cuda_check(launch_embedding_gradient(params, nullptr), "embedding_gradient");
  const std::vector<Bf16> both = d_table.to_host();
  std::size_t differ = 0;
  for (std::size_t i = 0; i < both.size(); ++i)
    differ += __bfloat16_as_ushort(both[i]) != __bfloat16_as_ushort(alone[i]);
  report("embedding, a second list of no row: other bits", static_cast<double>(differ), 0.0);
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
  Ids parts; // whole parts of 256 tokens of a row, and a token more or less
  for (int round = 0; round < 513; ++round)
    for (int row = 0; const int count : {255, 256, 257, 511, 512, 513}) {
      if (round < count) parts.push_back(row);
      ++row;
    }
  Ids two(40000); // tokens of two neighbouring rows, in runs of uneven length
  for (std::size_t t = 0; t < two.size(); ++t)
    two[t] = 5 + static_cast<int64_t>(t * t / 700 % 2);
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
      {"embedding, 131,080 of one row", 3, 256, Ids(131080, 1), true},
      {"embedding, whole parts of a row", 9, 768, parts, true},
      {"embedding, whole parts without the other use", 9, 512, parts, false},
      {"embedding, two rows of many tokens", 12, 768, two, true},
      {"embedding, a second list", 500, 768, apart, true, apart},
      {"embedding, a second list, 31 to 34 of a row", 8, 512, {4}, true, border},
      {"embedding, a second list, ids outside", 50, 1024, {7, 7}, true, outside},
      {"embedding, a second list, all of one row", 70, 768, Ids(700, 69), true, Ids(5000, 69)},
      {"embedding, both lists of two rows", 12, 1024, two, true, two},
      {"embedding, both lists like text", 3001, 768, like_text(20000, 3001, 1), true,
       like_text(20000, 3001, 4)},
      {"embedding, both lists, 65,536 tokens each", 5000, 256, like_text(65536, 5000, 2), true,
       like_text(65536, 5000, 5)}};
  for (const Case& c : cases)
    check(c);
  check_rows_of_no_id();
}

} // namespace nsa::kernels::check
