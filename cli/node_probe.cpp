// Implements `nsactl node probe`, which measures the network between nodes.
#include "cli/await_work.h"
#include "cli/json_text.h"
#include "cli/network_text.h"
#include "common/base/printable.h"
#include "common/net/http.h"

#include <utility>

namespace nsa::cli {

namespace {

using Pair = std::pair<std::string, std::string>;

// Returns NODE and WITH if both are given. With NODE alone it pairs this nsad's own node with that
// one. Without names it returns all pairs of ready nodes that belong to no job.
Result<std::vector<Pair>> pairs_of(const Arguments& arguments, client::Daemon& daemon) {
  const std::string node = arguments.text("NODE"), with = arguments.text("WITH");
  if (!with.empty()) return std::vector<Pair>{{node, with}};
  NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/nodes"));
  NSA_TRY_ASSIGN(const auto listed, client::read_items<wire::NodeView>(answer));
  if (!node.empty() && !listed.empty()) return std::vector<Pair>{{listed.front().name, node}};
  std::vector<std::string> ready;
  for (const wire::NodeView& view : listed)
    if (view.state == wire::NodeStatus::kReady && view.run.empty()) ready.push_back(view.name);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < ready.size(); ++i)
    for (size_t j = i + 1; j < ready.size(); ++j)
      pairs.emplace_back(ready[i], ready[j]);
  if (pairs.empty())
    return fail(ErrorCode::kConflict, "a network is between two nodes, and fewer are ready",
                "nsactl node ls; docs/several-nodes.md says how a node joins");
  return pairs;
}

Result<wire::NetworkProbe> measure(client::Daemon& daemon, const Arguments& arguments,
                                   const Pair& pair, Context& context) {
  const std::string target = "/v1/nodes/" + net::encode_component(pair.first) + "/probe";
  NSA_TRY(daemon.post(target, wire::NetworkProbeRequest{pair.second, arguments.has("cpu"),
                                                        arguments.text("interface")}));
  const auto describe = [&](const wire::NetworkProbe&) {
    return "measuring between " + pair.first + " and " + pair.second;
  };
  NSA_TRY_ASSIGN(auto probe, await_work<wire::NetworkProbe>(daemon, target, context, describe));
  if (probe.state == wire::WorkState::kFailed)
    return fail(ErrorCode::kSystem, probe.problem, probe.next);
  return probe;
}

// Measures every pair, even if another pair cannot be measured.
Result<Exit> run_probe(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const std::vector<Pair> pairs, pairs_of(arguments, daemon));
  auto items = nlohmann::json::array();
  std::optional<Error> failed;
  for (const Pair& pair : pairs) {
    const auto probe = measure(daemon, arguments, pair, context);
    if (!probe) {
      if (pairs.size() == 1) return fail(probe.error());
      failed = probe.error();
      context.io.err << printable(pair.first) << " and " << printable(pair.second) << ": "
                     << printable(probe.error().what) << "\n";
      continue;
    }
    items.push_back(*probe);
    if (context.output != Output::kJson)
      context.io.out << printable(probe->node) << " and " << printable(probe->with) << ": "
                     << network_text(probe->figures) << std::endl;
  }
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json{{"items", std::move(items)}}) << "\n";
  if (failed) return fail(*failed);
  return Exit::kDone;
}

} // namespace

Verb node_probe_verb() {
  Verb verb;
  verb.name = "node probe";
  verb.summary = "Measure bandwidth and latency between nodes";
  verb.detail =
      "The trainers of both nodes exchange sums for about three seconds. Where both nodes have a "
      "free GPU, they use NCCL between two GPUs, as ranks on GPUs do; else TCP, as ranks on CPUs "
      "do. The head keeps the figures: node show has them, and plan says by them what the network "
      "costs a step. With one name this nsad's own node is the other; without names each ready "
      "node is measured with each other, one pair after another. Meanwhile no run starts; a node "
      "on which a run has places is refused.";
  verb.positionals = {{"NODE", ValueType::kText, "name of a node, as nsactl node ls shows it"},
                      {"WITH", ValueType::kText, "the other node"}};
  for (Positional& positional : verb.positionals)
    positional.required = false;
  verb.options = {
      {"cpu", 0, ValueType::kFlag, "", "use TCP, also where both nodes have a free GPU"},
      {"interface", 0, ValueType::kText, "NAME",
       "the network interface that NCCL is to use on both nodes (NCCL_SOCKET_IFNAME)"}};
  verb.examples = {{"nsactl node probe", "each node with each other"},
                   {"nsactl node probe bee cow", "the network between these two"}};
  verb.run = run_probe;
  return verb;
}

} // namespace nsa::cli
