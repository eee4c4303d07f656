#pragma once
// Which attention problem, and how its kernels are tuned, as the words of a command line say it:
// what nsa-kernel-check and nsa-bench-kernels share. One thread.

#include <functional>
#include <string>
#include <vector>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// The family that serves a shape here.
KernelFamily family_of(const AttentionShape& shape, bool portable);

// Of the whole (part 0) or of one branch alone: selected, compressed, window.
CaseOptions part_of(CaseOptions options, int part);
// Blocks for the selected branch alone, as all branches together would choose them.
void choose_blocks(AttentionCase& c);

// "B2 S2048 ..." behind a case's name.
std::string title_of(const std::string& name, const CaseOptions& options);

// What both programs read from their words, which are
//   --query-major TOKENS  FusedTuning::query_major_tokens
//   --batch N --groups N --heads N (a group) --head-dim N
//   --given               blocks are given, some of them twice
//   --portable            the portable kernels where Hopper's serve as well
//   --overlap             overlap_launches
//   --whole, --selected   without the branches alone; the selected branch alone
struct CaseArguments {
  CaseOptions given;
  bool portable = false;
  int first_part = 0; // see part_of
  int past_part = 4;
  std::vector<int> sizes; // words that are no options

  // Words from the second on. `own` may take a word that is none of these, and its value (nullptr
  // where none follows): it returns how many words it took. Throws std::invalid_argument.
  using Own = std::function<int(const std::string& word, const char* value)>;
  static CaseArguments parse(int argc, char** argv, const Own& own = {});
};

} // namespace nsa::kernels::check
