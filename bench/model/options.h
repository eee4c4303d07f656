// What nsa-bench model is asked to measure.
#pragma once

#include "common/spec/run_spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::bench {

enum class Layers : uint8_t { kAuto, kComposed, kFused };
constexpr auto choice_names(Layers) {
  return names_of("auto", "composed", "fused");
}
enum class Graphs : uint8_t { kOff, kOn };
constexpr auto choice_names(Graphs) {
  return names_of("off", "on");
}

// What no run does before a GPU has checked it: a learned phi that reads tokens in place, BF16
// gradients that stay BF16 where a step is one micro-batch.
enum class Unchecked : uint8_t { kPhi, kGradients };
constexpr auto choice_names(Unchecked) {
  return names_of("phi", "gradients");
}

struct Options {
  std::vector<spec::Attention> attention{spec::Attention::kNsa, spec::Attention::kDense};
  std::vector<Layers> layers{Layers::kAuto};
  std::vector<Graphs> graphs{Graphs::kOff};
  std::vector<Unchecked> unchecked;
  std::vector<std::string> overrides;
  std::vector<int64_t> sequences{1024, 2048, 4096, 8192, 16384, 32768, 65536};
  std::string trace, run_file, data, checkpoint, save_attention;
  int64_t tokens = 32768, steps = 20, warm_up = 4, ranks = 1;
  int64_t save_layer = -1; // the middle one
  double seconds = 300, row_seconds = 5;
  bool parts = false, json = false, initial_values = false;
  bool sizes_given = false; // tokens or keys of the run file: not the table of the M7C
};

// Ends the program at --help and at mistakes.
Options parse_options(int argc, char** argv);

// The run that a row makes steps of. `gpu`: where nothing else is asked for, the kernels are ours.
spec::RunSpec spec_of(const Options& options, spec::Attention attention, int64_t sequence,
                      bool gpu);

} // namespace nsa::bench
