#include "bench/kernel_cases/case_options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "nsa_model/kernels/common/launch.h"

namespace nsa::kernels::check {
namespace {

// Takes the word at `i` and its value, if it is a size of the problem.
bool take_size(CaseOptions& given, int argc, char** argv, int& i) {
  const std::string word = argv[i];
  AttentionShape& shape = given.shape;
  int* target = word == "--heads"         ? &shape.heads
                : word == "--batch"       ? &shape.batch
                : word == "--groups"      ? &shape.groups
                : word == "--head-dim"    ? &shape.head_dim
                : word == "--query-major" ? &given.tuning.query_major_tokens
                                          : nullptr;
  if (target == nullptr || i + 1 >= argc) return false;
  *target = std::atoi(argv[++i]);
  shape.heads = std::clamp(shape.heads, 1, kMostHeads);
  shape.batch = std::max(1, shape.batch);
  shape.groups = std::max(1, shape.groups);
  return true;
}

} // namespace

KernelFamily family_of(const AttentionShape& shape, bool portable) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cuda_check(cudaGetDevice(&device), "device");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  return portable ? KernelFamily::kPortable : kernel_family(10 * major + minor, shape.head_dim);
}

CaseOptions part_of(CaseOptions options, int part) {
  constexpr int kBranch[] = {-1, 1, 0, 2};
  for (int branch = 0; part > 0 && branch < kBranches; ++branch)
    options.branch_on[branch] = branch == kBranch[part];
  if (part == 1) options.selection = Selection::kGiven;
  return options;
}
void choose_blocks(AttentionCase& c) {
  if (c.options.selection != Selection::kGiven) return;
  CaseOptions all = c.options;
  all.selection = Selection::kScored;
  for (bool& on : all.branch_on)
    on = true;
  AttentionCase chooser(all);
  chooser.forward();
  c.indices.from_host(chooser.indices.to_host());
}

std::string title_of(const std::string& name, const CaseOptions& options) {
  const AttentionShape& shape = options.shape;
  return name + " B" + std::to_string(shape.batch) + " S" + std::to_string(shape.sequence) + " G" +
         std::to_string(shape.groups) + " heads " + std::to_string(shape.heads) +
         (shape.head_dim == kHeadDim ? "" : " d " + std::to_string(shape.head_dim)) +
         (options.tuning.family == KernelFamily::kPortable ? " portable" : "");
}

CaseArguments CaseArguments::parse(int argc, char** argv, const Own& own) {
  CaseArguments read;
  read.given.shape = {1, 0, 2};
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (take_size(read.given, argc, argv, i)) continue;
    if (word == "--whole") {
      read.past_part = 1;
    } else if (word == "--selected") {
      read.first_part = 1;
      read.past_part = 2;
    } else if (word == "--portable") {
      read.portable = true;
    } else if (word == "--given") {
      read.given.selection = Selection::kDoubled;
    } else if (word == "--overlap") {
      overlap_launches = true;
    } else if (const int taken = own ? own(word, value) : 0; taken > 0) {
      i += taken - 1;
    } else if (const int size = std::atoi(word.c_str()); size > 0) {
      read.sizes.push_back(size);
    } else {
      throw std::invalid_argument("no such word: " + word);
    }
  }
  read.given.tuning.family = family_of(read.given.shape, read.portable);
  return read;
}

} // namespace nsa::kernels::check
