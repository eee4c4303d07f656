// Implements `nsactl plan`, which estimates a run's use of memory, time and disk from the run file
// alone.
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/network_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/run_file.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/estimate/estimate.h"
#include "common/estimate/nodes.h"
#include "common/spec/fields.h"
#include "common/wire/node_view.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace nsa::cli {

namespace {

// Returns the placement that nsad and the worker would choose on this machine.
estimate::Placement placement_of(const spec::RunSpec& spec) {
  int64_t gpus = 0;
  std::error_code error;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(gpus), error))
    ++gpus;
  const spec::Device device = spec.parallel.device;
  const bool gpu =
      device == spec::Device::kCuda ||
      (device == spec::Device::kAuto &&
       gpus >= (spec.parallel.nodes > 1 ? spec.parallel.ranks_per_node : spec.parallel.ranks));
  return estimate::choose_placement(spec, gpu, read_file("/proc/cpuinfo", 1 << 24).value_or(""));
}

// The nodes of the ranks if every slot is free. `parts` is empty for one node.
struct NodesOfRun {
  std::vector<estimate::NodePart> parts;
  bool known = false; // these nodes have joined; otherwise their names are numbers
  std::string missing;
  std::vector<estimate::MeasuredLink> links; // between any nodes of the head
};

struct Cluster {
  std::vector<estimate::NodeSlots> slots; // slots for ranks, those of this nsad's own node first
  std::vector<estimate::MeasuredLink> links;
};

// Returns an empty value if no nsad answers.
Cluster ask_cluster(const Context& context, bool gpu) {
  Cluster cluster;
  auto daemon = connect(context, false);
  if (!daemon) return cluster;
  const auto answer = daemon->get("/v1/nodes");
  const auto nodes = answer ? client::read_items<wire::NodeView>(*answer)
                            : Result<std::vector<wire::NodeView>>(fail(answer.error()));
  if (!nodes) return cluster;
  for (const wire::NodeView& node : *nodes) {
    if (node.state == wire::NodeStatus::kReady && node.run.empty())
      cluster.slots.push_back(
          {node.name, gpu ? static_cast<int>(node.gpus.size()) : static_cast<int>(node.cpu_slots)});
    for (const wire::NetworkLink& link : node.network)
      cluster.links.push_back(
          {node.name, link.node, link.figures.latency_seconds, link.figures.bytes_per_second});
  }
  return cluster;
}

NodesOfRun nodes_of(const spec::RunSpec& spec, bool gpu, const Context& context) {
  const auto& parallel = spec.parallel;
  NodesOfRun found;
  if (parallel.nodes <= 1 && parallel.ranks_per_node > 0) return found;
  const estimate::NodesWanted wanted{static_cast<int>(parallel.nodes),
                                     static_cast<int>(parallel.ranks_per_node),
                                     static_cast<int>(parallel.ranks)};
  const bool of_job = spec.engine.is_used(); // the run's scheduler chooses the nodes
  Cluster cluster = of_job ? Cluster() : ask_cluster(context, gpu);
  found.links = std::move(cluster.links);
  found.parts = estimate::place(wanted, cluster.slots);
  found.known = !found.parts.empty();
  if (found.known || parallel.nodes <= 1) return found;
  std::vector<estimate::NodeSlots> supposed;
  for (int number = 1; number <= wanted.nodes; ++number)
    supposed.push_back({"node " + std::to_string(number), wanted.per_node});
  found.parts = estimate::place(wanted, supposed);
  if (!of_job)
    found.missing = cluster.slots.empty() ? "no nsad answers that could say which nodes these are"
                                          : "the nodes that are ready have no room for this";
  return found;
}

nlohmann::json json_of(const NodesOfRun& nodes, const estimate::NodeTraffic& traffic) {
  auto list = nlohmann::json::array();
  for (size_t i = 0; i < nodes.parts.size(); ++i)
    list.push_back({{"node", nodes.parts[i].node},
                    {"joined", nodes.known},
                    {"first_rank", nodes.parts[i].first_rank},
                    {"ranks", nodes.parts[i].ranks},
                    {"sent_bytes_per_step", traffic.sent[i]}});
  return list;
}

std::string ranks_text(const estimate::NodePart& part) {
  const std::string first = std::to_string(part.first_rank);
  if (part.ranks == 1) return "rank " + first;
  return "ranks " + first + " to " + std::to_string(part.first_rank + part.ranks - 1);
}

nlohmann::json json_of_cost(const NodesOfRun& nodes, const estimate::NodeTraffic& traffic) {
  const auto cost = estimate::measured_cost(traffic, nodes.parts, nodes.links);
  if (!cost) return nullptr;
  return {{"seconds_per_step", cost->seconds},
          {"node", cost->slowest.node},
          {"with", cost->slowest.other},
          {"bytes_per_second", cost->slowest.bytes_per_second},
          {"latency_seconds", cost->slowest.latency_seconds},
          {"measured_pairs", cost->measured},
          {"pairs", cost->pairs}};
}

std::string cost_text(const NodesOfRun& nodes, const estimate::NodeTraffic& traffic) {
  const auto cost = estimate::measured_cost(traffic, nodes.parts, nodes.links);
  if (!cost) {
    constexpr double kGigabit = 1e9 / 8;
    return format_duration(estimate::exchange_seconds(traffic, 10 * kGigabit, 0)) +
           " at 10 Gbit/s, " + format_duration(estimate::exchange_seconds(traffic, kGigabit, 0)) +
           " at 1 Gbit/s" + (nodes.known ? "; to measure it: nsactl node probe" : "");
  }
  const estimate::MeasuredLink& slowest = cost->slowest;
  std::string text = format_duration(cost->seconds) + ", as " + printable(slowest.node) + " and " +
                     printable(slowest.other) + " have " + bits_text(slowest.bytes_per_second) +
                     ", " + milliseconds(slowest.latency_seconds);
  if (cost->measured < cost->pairs)
    text += " (measured: " + std::to_string(cost->measured) + " of " + std::to_string(cost->pairs) +
            " pairs)";
  return text;
}

void print(const NodesOfRun& nodes, const estimate::NodeTraffic& traffic, std::ostream& out) {
  if (nodes.parts.size() < 2) return;
  out << "nodes      ";
  const char* before = "";
  for (const estimate::NodePart& part : nodes.parts) {
    out << before << printable(part.node) << ": " << ranks_text(part);
    before = ", ";
  }
  out << "\n";
  const auto most = static_cast<uint64_t>(*std::ranges::max_element(traffic.sent));
  out << "network    " << format_bytes(most) << " a step from a node to the others, in "
      << traffic.exchanges << " exchanges: " << cost_text(nodes, traffic) << "\n";
}

struct SetKey {
  std::string key, value, otherwise;
};

// Returns the keys whose values differ from the defaults.
std::vector<SetKey> set_keys(const spec::RunSpec& given) {
  spec::RunSpec spec = given, defaults;
  const spec::FieldTable values = spec::run_fields(spec), plain = spec::run_fields(defaults);
  std::vector<SetKey> out;
  for (size_t i = 0; i < values.size(); ++i) {
    const spec::Value value = spec::get(values[i]), otherwise = spec::get(plain[i]);
    if (value != otherwise)
      out.push_back({std::string(values[i].key), spec::to_toml(value), spec::to_toml(otherwise)});
  }
  for (const auto& [name, value] : given.toggles)
    out.push_back({"toggles." + name, value, ""});
  return out;
}

std::string json_bytes(const nlohmann::json& value) {
  return format_bytes(value.get<uint64_t>());
}

std::string flops(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

// Prints a line for each backend, with the reason if a faster one does not support the parts.
void print_kernels(const nlohmann::json& kernels, std::ostream& out) {
  std::vector<std::pair<std::string, std::string>> lines; // backend with reason, and its parts
  for (const auto& kernel : kernels) {
    std::string key = kernel["backend"].get<std::string>();
    if (kernel["falls_back"].get<bool>()) key += ", since " + kernel["reason"].get<std::string>();
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const auto& known) { return known.first == key; });
    if (line == lines.end()) line = lines.insert(lines.end(), {key, ""});
    line->second += (line->second.empty() ? "" : ", ") + kernel["part"].get<std::string>();
  }
  const char* before = "kernels    ";
  for (const auto& [key, parts] : lines) {
    out << before << parts << ": " << key << "\n";
    before = "           ";
  }
}

void print(const spec::RunSpec& spec, const nlohmann::json& estimate, Context& context) {
  std::ostream& out = context.io.out;
  const auto& m = spec.model;
  const auto& p = estimate["parameters"];
  out << "model      " << spec::name_of(m.attention) << "  "
      << format_count(p["total"].get<double>()) << " parameters (embedding "
      << format_count(p["embedding"].get<double>()) << ", attention "
      << format_count(p["attention"].get<double>()) << ", MLP "
      << format_count(p["mlp"].get<double>()) << ")  " << m.layers << " layers  width "
      << m.dimension << "\n";
  if (m.attention == spec::Attention::kNsa)
    out << "nsa        l " << spec.nsa.compression_block << "  d " << spec.nsa.compression_stride
        << "  block " << spec.nsa.selection_block << "  selected " << spec.nsa.selected_blocks
        << "  window " << spec.nsa.window << "  gate " << spec::name_of(spec.nsa.gate) << "\n";
  out << "batch      " << spec.sequences_per_step() << " sequences x " << spec.train.sequence_length
      << " = " << format_count(double(spec.tokens_per_step())) << " tokens a step   micro "
      << spec.train.micro_batch << " x accumulate " << spec.train.accumulate << " x ranks "
      << spec.data_ranks()
      << (spec.parallel.context_ranks > 1
              ? "\ncontext    " + std::to_string(spec.parallel.context_ranks) +
                    " ranks share each sequence, " + format_count(double(spec.tokens_of_rank())) +
                    " tokens of a micro-batch each"
              : std::string())
      << "\n";
  out << "tokens     " << format_count(estimate["tokens"]["total"].get<double>()) << " in "
      << spec.train.steps << " steps\n";
  out << "memory     " << json_bytes(estimate["memory_bytes"]["total"]) << " a rank";
  if (const auto& gpu = estimate["memory_bytes"]["on_gpu"]; gpu.get<int64_t>() > 0)
    out << ", " << json_bytes(gpu) << " of it on the GPU";
  out << ", about:";
  const char* before = " ";
  for (const char* part : {"weights", "masters", "moments", "gradients", "activations", "documents",
                           "logits", "collectives", "heap", "program", "snapshot"}) {
    const auto& value = estimate["memory_bytes"][part];
    if (value.get<int64_t>() == 0) continue;
    out << before << part << " " << json_bytes(value);
    before = ", ";
  }
  out << "\n";
  out << "disk       " << json_bytes(estimate["disk_bytes"]["total"]) << "  ("
      << estimate["disk_bytes"]["checkpoints_kept"].get<int64_t>() << " checkpoints of "
      << json_bytes(estimate["disk_bytes"]["checkpoint"]) << ")\n";
  const auto& f = estimate["flops_per_step"];
  out << "compute    " << flops(f["total"].get<double>()) << " FLOP a step, attention "
      << std::lround(100 * f["attention"].get<double>() / f["total"].get<double>()) << " %\n";
  out << "time       ";
  if (estimate["seconds"].is_null())
    out << "unknown: give a rate with --rate or plan.tokens_per_second, from an equal run\n";
  else
    out << format_duration(estimate["seconds"].get<double>()) << " at "
        << format_count(estimate["tokens_per_second"].get<double>()) << " tokens/s\n";
  if (const auto& money = estimate["money"]; !money.is_null()) {
    char text[64];
    std::snprintf(text, sizeof text, "%.2f for %.4g hours of %lld ", money["total"].get<double>(),
                  money["hours"].get<double>(), static_cast<long long>(spec.parallel.ranks));
    out << "money      " << text << (spec.parallel.ranks == 1 ? "rank" : "ranks") << " at "
        << spec.cost.per_gpu_hour << " an hour each\n";
  }
  out << "placement  " << spec.parallel.ranks << " ranks on "
      << estimate["placement"]["device"].get<std::string>() << ", computing in "
      << estimate["placement"]["compute"].get<std::string>() << ", " << spec.train.threads
      << " threads each\n";
  print_kernels(estimate["kernels"], out);
}

} // namespace

Result<Exit> show_plan(const RunFile& file, const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const spec::Parsed parsed, parse_or_explain(file, arguments, context));
  const spec::RunSpec& spec = parsed.spec;
  NSA_TRY(check_environment(spec, context));
  if (arguments.has("rate") && arguments.integer("rate", 0) <= 0)
    return fail(ErrorCode::kInvalidArgument, "--rate must be above 0",
                "write tokens per second, as `nsactl status` of an equal run shows them");
  const double rate = arguments.has("rate") ? static_cast<double>(arguments.integer("rate", 0))
                                            : spec.plan.tokens_per_second;
  const estimate::Placement placement = placement_of(spec);
  const nlohmann::json estimate = estimate::estimate(spec, placement, rate);
  const NodesOfRun nodes = nodes_of(spec, placement.gpu, context);
  const estimate::NodeTraffic traffic = estimate::traffic(spec, placement, nodes.parts);
  const std::vector<SetKey> changed = set_keys(spec);
  const auto missing = missing_data(spec);
  if (context.output == Output::kJson) {
    nlohmann::json document = {{"schema_version", 1},
                               {"estimate", estimate},
                               {"changes", nlohmann::json::array()},
                               {"warnings", spec::warnings(parsed)},
                               {"nodes", json_of(nodes, traffic)},
                               {"exchanges_per_step", traffic.exchanges},
                               {"network", json_of_cost(nodes, traffic)},
                               {"data_present", !missing}};
    for (const SetKey& change : changed)
      document["changes"].push_back(
          {{"key", change.key}, {"value", change.value}, {"default", change.otherwise}});
    context.io.out << json_text(document, 2) << "\n";
    return Exit::kDone;
  }
  context.io.out << printable(file.name) << " is right; " << changed.size()
                 << " values differ from the defaults\n\n";
  render::Table table({"KEY", "VALUE", "DEFAULT"});
  for (const SetKey& change : changed)
    table.add({printable(change.key), printable(change.value), printable(change.otherwise)});
  context.io.out << table.print(context.io.width, context.io.unicode) << "\n";
  print(spec, estimate, context);
  print(nodes, traffic, context.io.out);
  if (!nodes.missing.empty()) context.io.err << "note: " << nodes.missing << "\n";
  for (const std::string& warning : spec::warnings(parsed))
    context.io.err << "warning: " << printable(warning) << "\n";
  if (missing) context.io.err << "warning: " << printable(*missing) << "\n";
  return Exit::kDone;
}

Verb plan_verb() {
  Verb verb;
  verb.name = "plan";
  verb.summary = "Estimate what a run needs: memory, disk, tokens, time, money";
  verb.detail =
      "Starts nothing. For a run on several nodes it shows which ranks run on which node if all "
      "slots there are free, and what they send each other. Memory is estimated part by part. The "
      "summary of a run compares the estimate with the measured memory.";
  verb.positionals = {{"FILE", ValueType::kPath, "run file (TOML); - reads standard input"}};
  verb.options = {set_option(),
                  {"rate", 0, ValueType::kInteger, "TOKENS",
                   "tokens per second, for time and money; default: plan.tokens_per_second"}};
  verb.examples = {{"nsactl plan run.toml", "the whole picture"},
                   {"nsactl plan run.toml --set parallel.ranks=8 --rate 480000", "with a time"}};
  verb.run = [](const Arguments& arguments, Context& context) -> Result<Exit> {
    NSA_TRY_ASSIGN(const RunFile file, read_run_file(arguments.text("FILE"), context));
    return show_plan(file, arguments, context);
  };
  return verb;
}

} // namespace nsa::cli
