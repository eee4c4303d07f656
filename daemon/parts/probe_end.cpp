#include "daemon/parts/probe_end.h"

#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/plan/plan.h"
#include "daemon/proc/run_tool.h"

#include <cstdlib>
#include <map>

namespace nsa::parts {

Result<wire::NetworkFigures> run_probe_end(const std::string& worker, const ProbeOrder& order,
                                           const UniqueFd& store) {
  // Longer than the trainer's own limits, because their errors say more.
  constexpr Duration kLimit = std::chrono::seconds(50);
  proc::ToolRun tool;
  tool.arguments = {
      worker,        "--probe-network", std::to_string(order.rank),        "--rendezvous",
      order.meeting, "--device",        order.gpu.empty() ? "cpu" : "cuda"};
  std::map<std::string, std::string> environment{{std::string(wire::kAttemptMark), order.secret}};
  for (const std::string_view name : plan::kNodeVariables)
    if (const char* value = std::getenv(std::string(name).c_str()))
      environment.emplace(name, value);
  if (!order.interface.empty()) environment["NCCL_SOCKET_IFNAME"] = order.interface;
  environment[std::string(plan::kVisibleDevices)] = order.gpu;
  for (const auto& [name, value] : environment)
    tool.environment.push_back(name + "=" + value);
  if (store) tool.descriptors = {{store.get(), wire::kRankStoreFd}};
  NSA_TRY_ASSIGN(const std::string printed, proc::run_tool(tool, kLimit));
  NSA_TRY_ASSIGN(const nlohmann::json result, parse_json(printed, "what the trainer printed"));
  return wire::body_as<wire::NetworkFigures>(result, "what the trainer printed");
}

} // namespace nsa::parts
