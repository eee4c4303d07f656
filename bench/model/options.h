// What nsa-bench model measures.
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

struct Options {
  std::vector<spec::Attention> attention{spec::Attention::kNsa, spec::Attention::kDense};
  std::vector<Layers> layers{Layers::kAuto};
  std::vector<Graphs> graphs{Graphs::kOff};
  std::vector<std::string> overrides;
  std::vector<int64_t> sequences{1024, 2048, 4096, 8192, 16384, 32768, 65536};
  std::string trace, run_file, data, checkpoint, save_attention;
  int64_t tokens = 32768, steps = 20, warm_up = 4, ranks = 1;
  int64_t save_layer = -1; // -1: the middle layer
  double seconds = 300, row_seconds = 5;
  bool parts = false, json = false, initial_values = false;
  bool sizes_given = false; // tokens or run-file keys were given, so the M7C table is not printed
};

// Exits after --help and after errors.
Options parse_options(int argc, char** argv);

// The run whose steps a row measures. With `gpu` the kernels are ours unless the options request
// others.
spec::RunSpec spec_of(const Options& options, spec::Attention attention, int64_t sequence,
                      bool gpu);

} // namespace nsa::bench
