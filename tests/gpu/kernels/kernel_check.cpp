// Compares the attention kernels with float64 on the device. The exit code is 77 if there is no
// GPU. nsa-bench-kernels measures the same kernels.

#include <algorithm>
#include <climits>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tests/gpu/kernels/attention_checks.h"
#include "tests/gpu/kernels/cases.h"
#include "tests/gpu/kernels/compression_case.h"
#include "tests/gpu/kernels/judge.h"
#include "tests/gpu/kernels/layer_case.h"
#include "tests/gpu/kernels/rerun_checks.h"
#include "tests/gpu/kernels/sampled_check.h"

namespace nsa::kernels::check {
namespace {

int once(const CaseArguments& arguments) {
  CaseOptions given = arguments.given;
  const int sequence = arguments.sizes[0];
  const int tokens = arguments.sizes.size() == 2 ? arguments.sizes[1] : 32768;
  given.shape.batch = std::max(given.shape.batch, tokens / sequence);
  given.shape.sequence = sequence;
  AttentionCase c(part_of(given, arguments.first_part));
  choose_blocks(c);
  c.forward();
  c.backward();
  cuda_check(cudaDeviceSynchronize(), "once");
  return 0;
}

int long_case(const CaseArguments& arguments) {
  CaseOptions given = arguments.given;
  given.shape.sequence = arguments.sizes[0];
  return run_case("long", given) ? 0 : 1;
}

int sampled_case(const CaseArguments& arguments) {
  CaseOptions given = arguments.given;
  given.shape.sequence = arguments.sizes[0];
  return run_sampled_case("sampled", given) ? 0 : 1;
}

int run(int argc, char** argv) {
  CheckOptions wanted;
  bench::CommandLine command = {
      .name = "nsa-kernel-check",
      .summary = "Checks the attention kernels against float64. MODE is one of\n"
                 "  check            correctness cases, the most telling first\n"
                 "  layers           the kernels around attention alone\n"
                 "  compression [T]  the learned compression alone, cases of at most T tokens\n"
                 "  long S           one long sequence (minutes at 512K)\n"
                 "  sampled S        some rows and keys of a longer one\n"
                 "  repeat S N       N runs that must give the same bits of every result\n"
                 "  once S [TOKENS]  one forward and backward, for profilers and\n"
                 "                   compute-sanitizer",
      .arguments = "MODE [N ...]",
      .options = {{"--seconds", "N", "of check: no case begins later", bench::into(wanted.seconds)},
                  {"--match", "TEXT", "of check: cases whose name holds it",
                   bench::into(wanted.match)},
                  {"--without", "TEXT", "of check: cases whose name does not",
                   bench::into(wanted.without)}},
      .examples = {"check --match documents", "long 131072 --heads 16", "repeat 4096 200"}};
  CaseArguments arguments;
  arguments.add_options(command);
  arguments.read_or_exit(command, argc, argv);
  wanted.portable = arguments.portable;
  const std::vector<Mode> modes = {
      {"check", 0, kAnyCount, [&](const CaseArguments&) { return check_all(wanted); }},
      {"layers", 0, kAnyCount,
       [](const CaseArguments&) { return check_layer_kernels() == 0 ? 0 : 1; }},
      {"compression", 0, 1,
       [](const CaseArguments& a) {
         check_learned_compression(a.sizes.empty() ? INT_MAX : a.sizes[0]);
         return failures() == 0 ? 0 : 1;
       }},
      {"long", 1, 1, long_case},
      {"sampled", 1, 1, sampled_case},
      {"repeat", 2, 2,
       [](const CaseArguments& a) { return repeat(a.given, a.sizes[0], a.sizes[1]); }},
      {"once", 1, 2, once},
  };
  return run_mode(command, arguments, modes);
}

} // namespace
} // namespace nsa::kernels::check

int main(int argc, char** argv) {
  try {
    return nsa::kernels::check::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
