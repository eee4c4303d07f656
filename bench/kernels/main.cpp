// Times the attention kernels on a GPU. nsa-kernel-check tests their results. The exit code is 77
// if there is no GPU.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kernel_cases/case_options.h"
#include "bench/kernels/document_times.h"
#include "bench/kernels/interval_times.h"
#include "bench/kernels/layer_times.h"
#include "bench/kernels/timing.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::check {
namespace {

constexpr int kTokens = 32768;

// Times the selection of blocks alone.
void time_selection(int sequence, CaseOptions options) {
  options.shape.batch = std::max(kTokens, sequence) / sequence;
  options.shape.sequence = sequence;
  AttentionCase c(options);
  c.forward(); // computes the compressed keys and their log-sums
  const DeviceBuffer<char> scores(std::max<std::size_t>(1, selection_score_bytes(options.shape)));
  const SelectionParams params = {.shape = options.shape,
                                  .q = c.q.get(),
                                  .k_cmp = c.k_cmp.get(),
                                  .lse_cmp = c.branch_lse[0].get(),
                                  .scale = c.scale(),
                                  .indices = c.indices.get(),
                                  .scores = reinterpret_cast<float*>(scores.get())};
  constexpr int kTogether = 8; // launched together, because single launches would measure the host
  const Timing timing = time_of(
      [&] {
        for (int i = 0; i < kTogether; ++i)
          cuda_check(launch_selection(params, nullptr), "selection");
      },
      9);
  std::printf("%7d selection | %7.1f us (%.1f-%.1f)\n", sequence, 1e3 * timing.median / kTogether,
              1e3 * timing.low / kTogether, 1e3 * timing.high / kTogether);
  std::fflush(stdout);
}

void time_attention(const CaseArguments& arguments) {
  std::printf("%7s %9s | %22s | %22s | %7s\n", "S", "part", "forward ms (p10-p90)",
              "backward ms (p10-p90)", "sum");
  for (const int sequence : arguments.sizes) {
    const int tokens = std::max(kTokens, sequence);
    for (int part = arguments.first_part; part < arguments.past_part;
         // the whole, then each branch alone
         ++part) {
      const char* names[] = {"whole", "selected", "compr.", "window"};
      CaseOptions options = arguments.given;
      options.shape.batch = tokens / sequence;
      options.shape.sequence = sequence;
      AttentionCase c(part_of(options, part));
      choose_blocks(c);
      std::vector<double> forward_times;
      std::vector<double> backward_times;
      add_times([&] { c.forward(); }, 20, forward_times);
      add_times([&] { c.backward(); }, 20, backward_times);
      const Timing forward = timing_of(forward_times);
      const Timing backward = timing_of(backward_times);
      std::printf("%7d %9s | %7.3f (%.3f-%.3f) | %7.3f (%.3f-%.3f) | %7.3f\n", sequence,
                  names[part], forward.median, forward.low, forward.high, backward.median,
                  backward.low, backward.high, forward.median + backward.median);
      std::fflush(stdout);
    }
  }
}

int tokens_of(const CaseArguments& arguments) {
  return arguments.sizes.empty() ? kTokens : arguments.sizes[0];
}

// Returns a mode that calls `time` for each size.
template <typename Time> auto each_size(Time time) {
  return [time](const CaseArguments& arguments) {
    for (const int sequence : arguments.sizes)
      time(sequence, arguments.given);
    return 0;
  };
}

std::vector<Mode> modes() {
  return {
      {"attention", 1, kAnyCount, [](const CaseArguments& a) { return time_attention(a), 0; }},
      {"documents", 0, 1,
       [](const CaseArguments& a) { return time_documents(tokens_of(a), a.given), 0; }},
      {"layers", 0, 1, [](const CaseArguments& a) { return time_layer_kernels(tokens_of(a)), 0; }},
      {"intervals", 1, kAnyCount, each_size([](int sequence, const CaseOptions& given) {
         time_interval_kernels(sequence, given.shape.heads);
       })},
      {"selection", 1, kAnyCount, each_size(time_selection)},
  };
}

int run(int argc, char** argv) {
  bench::CommandLine command = {
      .name = "nsa-bench-kernels",
      .summary = "Times of the attention kernels. MODE is one of\n"
                 "  attention S [S ...]  medians over 32,768 tokens (65,536 at 64K)\n"
                 "  intervals S [S ...]  each kernel of the window, the compressed branch, the\n"
                 "                       causal first tokens and the dense twin's attention\n"
                 "  selection S [S ...]  the choice of blocks alone\n"
                 "  documents [TOKENS]   packed documents, batched and one by one, and each batch\n"
                 "  layers [TOKENS]      the kernels around attention",
      .arguments = "MODE [N ...]",
      .examples = {"attention 2048 8192 --whole", "selection 65536 --groups 1"}};
  CaseArguments arguments;
  arguments.add_options(command);
  arguments.read_or_exit(command, argc, argv);
  return run_mode(command, arguments, modes());
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
