#pragma once
// Which attention problem, and how its kernels are tuned, as the words of a command line say it:
// what nsa-kernel-check and nsa-bench-kernels share. One thread.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/arguments/arguments.h"
#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// The kernel family that serves a shape on this device.
KernelFamily family_of(const AttentionShape& shape, bool portable);

// Of the whole (part 0) or of one branch alone: selected, compressed, window.
CaseOptions part_of(CaseOptions options, int part);
// Blocks for the selected branch alone, as all branches together would choose them.
void choose_blocks(AttentionCase& c);

// "B2 S2048 ..." behind a case's name.
std::string title_of(const std::string& name, const CaseOptions& options);

// What both programs read from their words: a mode, sizes, and options of the problem.
struct CaseArguments {
  std::string mode;
  std::vector<int> sizes;
  CaseOptions given;
  bool portable = false;
  int first_part = 0; // see part_of
  int past_part = 4;

  // The options, which set what they name here, in front of the command's own.
  void add_options(bench::CommandLine& command);
  // Reads the words by `command`. Ends the program with 0 behind its help, with 2 where the words
  // are wrong, and with 77 where there is no GPU.
  void read_or_exit(const bench::CommandLine& command, int argc, char** argv);
};

struct Mode {
  std::string_view name;
  std::size_t least, most; // sizes behind it
  std::function<int(const CaseArguments&)> run;
};
inline constexpr std::size_t kAnyCount = SIZE_MAX;
// The exit code of the mode that the words name, or 2 where none of them takes these sizes.
int run_mode(const bench::CommandLine& command, const CaseArguments& arguments,
             std::span<const Mode> modes);

} // namespace nsa::kernels::check
