#include "common/spec/passed_variables.h"

#include <algorithm>

namespace nsa::spec {

const std::vector<PassedVariable>& passed_variables() {
  static const std::vector<PassedVariable> kList = {
      {"JOB_*", "whatever the run's own code reads; no library does"},
      {"WANDB_API_KEY", "a secret, for workers that report to Weights & Biases"},
      {"CUDA_CACHE_DISABLE", "CUDA's cache of compiled PTX: off"},
      {"CUDA_CACHE_MAXSIZE", "its size in bytes"},
      {"CUDA_DISABLE_PTX_JIT", "CUDA: refuse kernels that have to be compiled first"},
      {"GOMP_CPU_AFFINITY", "OpenMP of GCC: cores of the threads"},
      {"KMP_AFFINITY", "OpenMP of Intel: cores of the threads"},
      {"KMP_BLOCKTIME", "OpenMP of Intel: ms that idle threads spin"},
      {"NCCL_CROSS_NIC", "NCCL: rings over different network cards"},
      {"NCCL_IB_GID_INDEX", "NCCL on InfiniBand: index of the global id"},
      {"NCCL_IB_HCA", "NCCL on InfiniBand: cards to use"},
      {"NCCL_IB_RETRY_CNT", "NCCL on InfiniBand: retries"},
      {"NCCL_IB_TIMEOUT", "NCCL on InfiniBand: time-out of the card"},
      {"NCCL_NET_GDR_LEVEL", "NCCL: how far a card may be from its GPU"},
      {"NCCL_NSOCKS_PERTHREAD", "NCCL over TCP: sockets a thread"},
      {"NCCL_NTHREADS", "NCCL: CUDA threads a block"},
      {"NCCL_P2P_LEVEL", "NCCL: how far GPUs may be apart to reach each other"},
      {"NCCL_SOCKET_FAMILY", "NCCL over TCP: IPv4 or IPv6"},
      {"NCCL_SOCKET_NTHREADS", "NCCL over TCP: helper threads"},
      {"OMP_PLACES", "OpenMP: places of the threads"},
  };
  return kList;
}

namespace {

bool covers(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) &&
                                      name.size() >= pattern.size()
                                : name == pattern;
}

// Gives the reason only; a variable that is not on the list is rejected anyway.
std::string_view danger_of(std::string_view name) {
  constexpr std::string_view kLoads = "makes programs load code that it names";
  constexpr std::string_view kPlaces = "names a place where programs look for code or files";
  if (name.starts_with("LD_") || name.starts_with("PYTHON") || name.starts_with("PERL") ||
      name == "BASH_ENV" || name == "ENV")
    return kLoads;
  for (const std::string_view part : {"PLUGIN", "INJECTION", "LIBRARY", "PRELOAD", "MODULE"})
    if (name.find(part) != std::string_view::npos) return kLoads;
  if (name.starts_with("GLIBC_") || name.starts_with("MALLOC_")) return "changes the C library";
  for (const std::string_view end : {"PATH", "_DIR", "_HOME", "_FILE"})
    if (name.ends_with(end)) return kPlaces;
  for (const std::string_view own : {"HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"})
    if (name == own) return "comes from the submitter's account";
  return "is not on the list of variables that may be passed";
}

} // namespace

std::optional<Fault> check_passed_variable(std::string_view name) {
  const auto& list = passed_variables();
  if (std::any_of(list.begin(), list.end(),
                  [&](const PassedVariable& v) { return covers(v.name, name); }))
    return std::nullopt;
  return Fault{std::string(danger_of(name)),
               "leave it out; for the run's own code: JOB_" + std::string(name)};
}

} // namespace nsa::spec
