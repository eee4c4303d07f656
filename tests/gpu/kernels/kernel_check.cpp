// Checks the attention kernels against float64 on the device.
//
//   nsa-kernel-check check [--seconds N]  correctness cases, the most telling first, until N
//                                         seconds have passed; exit code 1 when one fails. --match
//                                         TEXT and --without TEXT choose by name
//   nsa-kernel-check layers               of the kernels around attention alone
//   nsa-kernel-check long S               one long sequence against float64 (minutes at 128K);
//                                         131072 --heads 16: 2^31 elements in one buffer
//   nsa-kernel-check repeat S N           N runs that must give the same bits of every result
//   nsa-kernel-check once S [tokens]      one forward and backward, for profilers and
//                                         compute-sanitizer
// Other words: CaseArguments (bench/kernel_cases/case_options.h). Exit code 77 where there is no
// GPU. The times of the same kernels: nsa-bench-kernels.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tests/gpu/kernels/attention_checks.h"
#include "tests/gpu/kernels/cases.h"
#include "tests/gpu/kernels/layer_case.h"
#include "tests/gpu/kernels/rerun_checks.h"

namespace nsa::kernels::check {
namespace {

constexpr int kUsage = 2;
constexpr int kSkipped = 77;

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

int run(int argc, char** argv) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU (%s)\n", cudaGetErrorString(error));
    return kSkipped;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  CheckOptions wanted;
  const auto own = [&](const std::string& word, const char* value) {
    if (value == nullptr) return 0;
    if (word == "--seconds") {
      wanted.seconds = std::atof(value);
    } else if (word == "--match") {
      wanted.match = value;
    } else if (word == "--without") {
      wanted.without = value;
    } else {
      return 0;
    }
    return 2;
  };
  CaseArguments arguments = CaseArguments::parse(argc, argv, own);
  wanted.portable = arguments.portable;
  const std::vector<int>& sizes = arguments.sizes;
  if (mode == "check") return check_all(wanted);
  if (mode == "layers") return check_layer_kernels() == 0 ? 0 : 1;
  if (mode == "long" && sizes.size() == 1) {
    arguments.given.shape.sequence = sizes[0];
    return run_case("long", arguments.given) ? 0 : 1;
  }
  if (mode == "repeat" && sizes.size() == 2) return repeat(arguments.given, sizes[0], sizes[1]);
  if (mode == "once" && (sizes.size() == 1 || sizes.size() == 2)) return once(arguments);
  std::fprintf(stderr,
               "usage: nsa-kernel-check check [--seconds N] [--match TEXT] [--without TEXT] | "
               "layers | long S | repeat S N | once S [tokens]\n"
               "       [--query-major TOKENS] [--batch N] [--heads N] [--groups N] [--head-dim N] "
               "[--given] [--selected] [--portable] [--overlap]\n");
  return kUsage;
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
