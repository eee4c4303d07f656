#include "bench/kernel_cases/case_options.h"

#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "common/base/result.h"

namespace nsa::kernels::check {
namespace {

constexpr int kUsage = 2;
constexpr int kSkipped = 77;

// Returns a setter of an integer from 1 to `most`.
std::function<Status(const std::string&)> into(int& target, int most = INT_MAX) {
  return [&target, most](const std::string& value) -> Status {
    int64_t number = 0;
    NSA_TRY(bench::into(number)(value));
    if (number > most)
      return fail(ErrorCode::kInvalidArgument, value + " is more than " + std::to_string(most));
    target = static_cast<int>(number);
    return {};
  };
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

void CaseArguments::add_options(bench::CommandLine& command) {
  given.shape = {1, 0, 2};
  AttentionShape& shape = given.shape;
  const auto to = [](auto&& act) {
    return [act](const std::string&) -> Status {
      act();
      return {};
    };
  };
  std::vector<bench::Option> options = {
      {"--batch", "N", "sequences", into(shape.batch)},
      {"--groups", "N", "KV groups", into(shape.groups)},
      {"--heads", "N", "query heads of a group", into(shape.heads, kMostHeads)},
      {"--head-dim", "N", "64 or 128", into(shape.head_dim)},
      {"--query-major", "TOKENS", "first tokens that take the query-major kernels",
       into(given.tuning.query_major_tokens)},
      {"--compressed-backward", "TOKENS",
       "length from which on the compressed branch has one backward kernel",
       into(given.tuning.compressed_backward_from)},
      {"--given", "", "blocks are given, some of them twice",
       to([this] { given.selection = Selection::kDoubled; })},
      {"--portable", "", "the portable kernels where Hopper's serve as well",
       bench::into(portable)},
      {"--whole", "", "without the branches alone", to([this] { past_part = 1; })},
      {"--selected", "", "the selected branch alone", to([this] {
         first_part = 1;
         past_part = 2;
       })}};
  command.options.insert(command.options.begin(), std::make_move_iterator(options.begin()),
                         std::make_move_iterator(options.end()));
}

void CaseArguments::read_or_exit(const bench::CommandLine& command, int argc, char** argv) {
  const std::vector<std::string> words = bench::read_or_exit(command, argc, argv);
  if (!words.empty()) mode = words[0];
  for (std::size_t i = 1; i < words.size(); ++i) {
    int size = 0;
    if (const Status status = into(size)(words[i]); !status) {
      std::fprintf(stderr, "error: %s\n", status.error().what.c_str());
      std::exit(kUsage);
    }
    sizes.push_back(size);
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU (%s)\n", cudaGetErrorString(error));
    std::exit(kSkipped);
  }
  given.tuning.family = family_of(given.shape, portable);
}

int run_mode(const bench::CommandLine& command, const CaseArguments& arguments,
             std::span<const Mode> modes) {
  const std::size_t count = arguments.sizes.size();
  for (const Mode& mode : modes)
    if (mode.name == arguments.mode && count >= mode.least && count <= mode.most)
      return mode.run(arguments);
  std::fprintf(stderr, "error: \"%s\" is no mode, or needs other sizes behind it: %s --help\n",
               arguments.mode.c_str(), command.name.c_str());
  return kUsage;
}

} // namespace nsa::kernels::check
