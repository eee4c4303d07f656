#include "common/spec/toggles.h"

#include "common/base/text.h"
#include "common/spec/worker_toggles.h"

#include <algorithm>
#include <charconv>

namespace nsa::spec {

namespace {

constexpr ToggleType kBool = ToggleType::kBool, kInt = ToggleType::kInt,
                     kChoice = ToggleType::kChoice, kText = ToggleType::kText;

template <ChoiceEnum E> Toggle row(const WorkerToggle<E>& toggle) {
  return {.name = toggle.name,
          .type = kChoice,
          .choices = {kChoiceNames<E>.begin(), kChoiceNames<E>.end()},
          .variable = {},
          .meaning = toggle.meaning,
          .default_value = name_of(toggle.default_value)};
}

// clang-format off
const std::vector<Toggle>& environment_toggles() {
  static const std::vector<Toggle> kToggles = {
    {"allocator.configuration", kText, {}, "PYTORCH_ALLOC_CONF",
     "options of LibTorch's GPU allocator, \"expandable_segments:True\""},
    {"allocator.arenas", kInt, {}, "MALLOC_ARENA_MAX",
     "arenas of the C library's allocator; with many threads, few arenas keep resident memory small"},

    {"cuda.launch_blocking", kBool, {}, "CUDA_LAUNCH_BLOCKING",
     "debug: every kernel launch waits for its end"},
    {"cuda.module_loading", kChoice, {"LAZY", "EAGER"}, "CUDA_MODULE_LOADING",
     "when GPU code is loaded"},
    {"cuda.max_connections", kInt, {}, "CUDA_DEVICE_MAX_CONNECTIONS",
     "hardware queues between host and device"},
    {"cublas.workspace", kText, {}, "CUBLAS_WORKSPACE_CONFIG",
     "\":4096:8\" makes cuBLAS deterministic over several streams"},
    {"cuda.tf32_override", kBool, {}, "NVIDIA_TF32_OVERRIDE",
     "false: no library may use TF32 for FP32 products"},

    {"nccl.debug", kChoice, {"VERSION", "WARN", "INFO", "TRACE"}, "NCCL_DEBUG",
     "how much NCCL writes to the rank's log"},
    {"nccl.debug_subsystems", kText, {}, "NCCL_DEBUG_SUBSYS",
     "parts of NCCL that nccl.debug = \"INFO\" covers, \"INIT,COLL\""},
    {"nccl.blocking_wait", kBool, {}, "TORCH_NCCL_BLOCKING_WAIT",
     "debug: the host waits for every collective; slow"},
    {"nccl.trace_buffer", kInt, {}, "TORCH_FR_BUFFER_SIZE",
     "collectives that the flight recorder remembers"},
    {"nccl.nvls", kInt, {}, "NCCL_NVLS_ENABLE",
     "NVLink multicast in NCCL: 0 off, 1 on, 2 on if it works", true},
    {"nccl.p2p_disable", kBool, {}, "NCCL_P2P_DISABLE",
     "true: GPUs do not read each other's memory"},
    {"nccl.p2p_level", kText, {}, "NCCL_P2P_LEVEL",
     "largest distance at which GPUs read each other's memory: LOC, NVL, PIX, PXB, PHB, SYS"},
    {"nccl.shm_disable", kBool, {}, "NCCL_SHM_DISABLE",
     "true: no shared memory between ranks of a host"},
    {"nccl.ib_disable", kBool, {}, "NCCL_IB_DISABLE", "true: no InfiniBand"},
    {"nccl.socket_interface", kText, {}, "NCCL_SOCKET_IFNAME",
     "network interface that NCCL listens on; if unset \"=lo\" (loopback) where all ranks are on this host, and on several nodes the variable of each node's nsad, or NCCL's choice"},
    {"nccl.cumem", kBool, {}, "NCCL_CUMEM_ENABLE",
     "false: ranks share GPU memory by CUDA IPC instead of an abstract socket that every user of the host can reach; NVLS is then off"},
    {"nccl.ras", kBool, {}, "NCCL_RAS_ENABLE",
     "NCCL's status service; if unset false, since the service answers every user of the host without a secret"},
    {"nccl.algorithm", kText, {}, "NCCL_ALGO",
     "Ring, Tree, NVLS, ...; a list limits the choice"},
    {"nccl.protocol", kText, {}, "NCCL_PROTO", "LL, LL128, Simple"},
    {"nccl.min_channels", kInt, {}, "NCCL_MIN_NCHANNELS", "fewest channels"},
    {"nccl.max_channels", kInt, {}, "NCCL_MAX_NCHANNELS", "most channels"},
    {"nccl.cluster_size", kInt, {}, "NCCL_CGA_CLUSTER_SIZE",
     "channels whose CTAs form one cluster on Hopper and later GPUs, 0 to 8"},
    {"nccl.buffer_bytes", kInt, {}, "NCCL_BUFFSIZE", "buffer of a channel"},

    {"symmetric_memory.disable_multicast", kBool, {}, "TORCH_SYMM_MEM_DISABLE_MULTICAST", "true: LibTorch's symmetric memory without NVLink multicast",
     true},
    {"nvshmem.disable_nvls", kBool, {}, "NVSHMEM_DISABLE_NVLS",
     "true: NVSHMEM without NVLink multicast", true},

    {"torch.cpp_log_level", kChoice, {"INFO", "WARNING", "ERROR", "FATAL"}, "TORCH_CPP_LOG_LEVEL", "how much LibTorch writes to the rank's log"},
    {"torch.show_cpp_stacktraces", kBool, {}, "TORCH_SHOW_CPP_STACKTRACES",
     "C++ stacks in LibTorch's errors"},
    {"torch.distributed_debug", kChoice, {"OFF", "INFO", "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG", "DETAIL checks that all ranks call the same collectives; slow"},

    {"openmp.bind", kChoice, {"true", "false", "close", "spread", "master"}, "OMP_PROC_BIND",
     "where the threads of a rank may run"},
    {"openmp.wait", kChoice, {"ACTIVE", "PASSIVE"}, "OMP_WAIT_POLICY",
     "whether idle threads spin or sleep"},
    {"mkl.reproducible", kText, {}, "MKL_CBWR",
     "for example \"AVX2\": the same bits on processors of different generations"},
  };
  return kToggles;
}
// clang-format on

std::optional<bool> bool_from(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

bool is_whole_number(std::string_view text) {
  int64_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  return end.ec == std::errc() && end.ptr == text.data() + text.size() && number >= 0;
}

} // namespace

const std::vector<Toggle>& toggle_registry() {
  static const std::vector<Toggle> kAll = [] {
    std::vector<Toggle> all;
    std::apply([&](const auto&... toggle) { (all.push_back(row(toggle)), ...); }, kWorkerToggles);
    all.insert(all.end(), environment_toggles().begin(), environment_toggles().end());
    return all;
  }();
  return kAll;
}

bool is_set_true(const std::map<std::string, std::string>& toggles, std::string_view name) {
  const auto found = toggles.find(std::string(name));
  return found != toggles.end() && bool_from(found->second).value_or(false);
}

// clang-format off
const std::vector<ProgramVariable>& program_variables() {
  static const std::vector<ProgramVariable> kVariables = {
    {"NSA_SOCKET", "nsactl, nsad", "path of nsad's socket, as --socket"},
    {"NSA_TORCH_DIR", "make, tools/configure", "folder of the LibTorch with which to build"},
    {"NSA_OPS_CUDA_LIBRARY", "Python users of libnsa_ops.so", "path of libnsa_ops_cuda.so"},
    {"NSA_UPDATE_DOCS", "the tests of generated pages", "writes the pages instead of comparing them"},
  };
  return kVariables;
}
// clang-format on

std::map<std::string, std::string> requested_toggles(const RunSpec& spec) {
  std::map<std::string, std::string> requested = spec.toggles;
  if (spec.train.deterministic) {
    // cuBLAS is deterministic only with workspaces of fixed size.
    requested.emplace("cublas.workspace", ":4096:8");
    // LibTorch itself sets this in a rank's environment, because NVLink multicast sums in varying
    // order. Setting it here makes it a requested value.
    requested.emplace("nccl.algorithm", "^NVLS");
  }
  if (spec.parallel.device == Device::kCuda && spec.parallel.ranks > 1) {
    // If all ranks are on this host, NCCL must not listen beyond it, unless the run file says so. A
    // run that gets more nodes than it names gets the toggle at admission.
    if (spec.parallel.nodes <= 1)
      requested.emplace("nccl.socket_interface", std::string(kLoopbackInterface));
    requested.emplace("nccl.ras", "false");
  }
  return requested;
}

const Toggle* find_toggle(std::string_view name) {
  for (const Toggle& toggle : toggle_registry())
    if (toggle.name == name) return &toggle;
  return nullptr;
}

bool is_program_variable(std::string_view name) {
  return std::any_of(program_variables().begin(), program_variables().end(),
                     [&](const ProgramVariable& v) { return v.name == name; });
}

bool is_host_variable(std::string_view name) {
  return std::any_of(toggle_registry().begin(), toggle_registry().end(),
                     [&](const Toggle& t) { return t.from_host && t.variable == name; });
}

std::optional<Fault> check_toggle(const std::string& name, const std::string& value) {
  const Toggle* toggle = find_toggle(name);
  if (toggle == nullptr) {
    std::vector<std::string> names;
    for (const Toggle& t : toggle_registry()) {
      if (t.variable == name)
        return Fault{"toggles have names of their own", "write toggles." + std::string(t.name)};
      names.emplace_back(t.name);
    }
    if (const PredecessorFlag* flag = find_predecessor_flag(name))
      return Fault{"is a name of the predecessor: " + std::string(flag->why),
                   flag->ours.empty() ? "leave it out" : "use " + std::string(flag->ours)};
    const auto nearest = nearest_name(name, names);
    return Fault{"no toggle has this name", nearest ? "did you mean toggles." + *nearest + "?"
                                                    : "docs/toggles.md lists all of them"};
  }
  if (value.empty()) return std::nullopt; // not set
  switch (toggle->type) {
  case ToggleType::kBool:
    if (bool_from(value)) return std::nullopt;
    return Fault{"must be true or false, not \"" + value + "\"", ""};
  case ToggleType::kInt:
    if (is_whole_number(value)) return std::nullopt;
    return Fault{"must be a whole number, not \"" + value + "\"", ""};
  case ToggleType::kChoice: {
    const std::vector<std::string> choices(toggle->choices.begin(), toggle->choices.end());
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return std::nullopt;
    const auto nearest = nearest_name(value, choices);
    return Fault{"\"" + value + "\" is not one of: " + join(choices, ", "),
                 nearest ? "did you mean \"" + *nearest + "\"?" : ""};
  }
  case ToggleType::kText:
    break;
  }
  if (value.find('\0') != std::string::npos || value.find('\n') != std::string::npos)
    return Fault{"must be one line", ""};
  return std::nullopt;
}

Result<std::map<std::string, std::string>>
resolve_toggles(const std::map<std::string, std::string>& requested) {
  std::map<std::string, std::string> resolved;
  std::vector<std::string> wrong;
  for (const Toggle& toggle : toggle_registry())
    resolved[std::string(toggle.name)] = toggle.default_value;
  for (const auto& [name, value] : requested) {
    if (auto fault = check_toggle(name, value))
      wrong.push_back(name + ": " + fault->what +
                      (fault->next.empty() ? "" : " (" + fault->next + ")"));
    else
      resolved[name] = value;
  }
  if (!wrong.empty())
    return fail(ErrorCode::kInvalidArgument, "toggles: " + join(wrong, "; "),
                "docs/toggles.md lists the toggles");
  return resolved;
}

std::map<std::string, std::string>
toggle_environment(const std::map<std::string, std::string>& resolved) {
  std::map<std::string, std::string> environment;
  for (const auto& [name, value] : resolved) {
    const Toggle* toggle = find_toggle(name);
    if (toggle == nullptr || toggle->variable.empty() || value.empty()) continue;
    // The libraries that read them accept 0 and 1.
    const bool boolean = toggle->type == ToggleType::kBool;
    environment[std::string(toggle->variable)] =
        boolean ? (is_set_true(resolved, name) ? "1" : "0") : value;
  }
  return environment;
}

std::map<std::string, std::string>
host_toggles(const std::map<std::string, std::string>& environment) {
  std::map<std::string, std::string> toggles;
  for (const Toggle& toggle : toggle_registry()) {
    const auto found = environment.find(std::string(toggle.variable));
    if (!toggle.from_host || found == environment.end()) continue;
    const std::string& text = found->second; // a variable's value may be anything that its library
                                             // accepts
    const bool boolean = toggle.type == ToggleType::kBool;
    toggles[std::string(toggle.name)] = !boolean                        ? text
                                        : text == "1" || text == "true" ? "true"
                                                                        : "false";
  }
  return toggles;
}

} // namespace nsa::spec
