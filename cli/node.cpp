// Implements `node token`, `ls`, `show`, `drain`, `undrain` and `rm`.
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/network_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/base/text.h"
#include "common/net/http.h"
#include "common/wire/node_view.h"

#include <algorithm>

namespace nsa::cli {

namespace {

std::string node_target(const std::string& node, const std::string& rest = {}) {
  return "/v1/nodes/" + net::encode_component(node) + rest;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

bool is_measured(const wire::NodeView& node) {
  return node.role == wire::NodeRole::kAgent && node.round_trip_seconds > 0;
}

std::string painted_state(const wire::NodeView& node, const render::Style& style) {
  if (node.state == wire::NodeStatus::kReady && node.problem.empty())
    return render::paint(node.state.view(), render::Colour::kGreen, style);
  if (node.state == wire::NodeStatus::kLost)
    return render::paint(node.state.view(), render::Colour::kRed, style);
  return render::paint(node.state.view(), render::Colour::kYellow, style);
}

// Returns what a reader of the list should know about a node.
std::string note_of(const wire::NodeView& node) {
  if (!node.problem.empty()) return "no node can join: " + node.problem;
  if (node.drained_at != 0 && node.state != wire::NodeStatus::kDrained) return "drained";
  if (!node.run.empty()) return "of run " + node.run + "'s job";
  return "-";
}

std::string table_of(const std::vector<wire::NodeView>& nodes, const Context& context) {
  const auto view = view_options(context);
  const WallTime now = WallTime::now();
  std::vector<std::string> header = {"NODE", "ROLE",  "STATE",        "CPUS",    "MEMORY",
                                     "GPUS", "HEARD", "CLOCK OFFSET", "ADDRESS", "NOTE"};
  if (view.wide) header.insert(header.end() - 1, {"BUILD", "JOINED", "CERTIFICATE UNTIL"});
  render::Table table(header);
  for (const wire::NodeView& node : nodes) {
    const bool known = node.processors > 0;
    std::vector<std::string> cells = {node.name,
                                      node.role.text(),
                                      painted_state(node, view.style),
                                      known ? std::to_string(node.processors) : "-",
                                      known ? format_bytes(node.memory_bytes) : "-",
                                      known ? std::to_string(node.gpus.size()) : "-",
                                      render::age({node.heard_at}, now),
                                      is_measured(node) ? milliseconds(node.clock_offset_seconds)
                                                        : "-",
                                      or_dash(node.address),
                                      note_of(node)};
    if (view.wide)
      cells.insert(
          cells.end() - 1,
          {or_dash(node.build), render::age({node.joined_at}, now),
           node.certificate_expires_at == 0 ? "-" : format_rfc3339({node.certificate_expires_at})});
    table.add(std::move(cells));
  }
  for (const size_t column : {size_t{3}, size_t{4}, size_t{5}})
    table.right(column);
  return table.print(view.wide ? 0 : view.width, view.style.unicode);
}

Result<Exit> run_token(const Arguments&, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.post("/v1/node-tokens"));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto token, client::read_as<wire::NodeToken>(answer));
  context.io.out << token.token << "\n";
  if (!context.quiet)
    context.io.err << "good for one node, until "
                   << render::clock_time({token.expires_at}, WallTime::now()) << "\n";
  hint(context, {"on the other node: nsad --join " + token.head + " --token TOKEN"});
  return Exit::kDone;
}

Result<Exit> run_node_ls(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer,
                 daemon.get(arguments.has("all") ? "/v1/nodes?all" : "/v1/nodes"));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto nodes, client::read_items<wire::NodeView>(answer));
  context.io.out << table_of(nodes, context);
  return Exit::kDone;
}

Result<Exit> run_show(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(node_target(arguments.text("NODE"))));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto node, client::read_as<wire::NodeView>(answer));
  const WallTime now = WallTime::now();
  const auto fact = [&](const std::string& name, const std::string& value) {
    if (value.empty() || value == "-") return;
    std::string padded = name;
    padded.resize(22, ' ');
    context.io.out << padded << value << "\n";
  };
  const auto time = [](const wire::Time& at) { return at == 0 ? "" : format_rfc3339({at}); };
  fact("node", node.name);
  fact("role", node.role.text());
  fact("state", painted_state(node, view_options(context).style));
  fact("problem", node.problem);
  fact("address", node.address);
  fact("heard", render::age({node.heard_at}, now));
  if (is_measured(node)) {
    fact("clock offset", milliseconds(node.clock_offset_seconds));
    fact("round trip", milliseconds(node.round_trip_seconds));
  }
  if (node.processors > 0) {
    fact("processors", std::to_string(node.processors));
    if (node.cpu_slots > 0) fact("CPU slots", std::to_string(node.cpu_slots));
    fact("memory", format_bytes(node.memory_bytes));
  }
  fact("GPUs", join(node.gpus, ", "));
  for (const wire::NetworkLink& link : node.network)
    fact("network to " + link.node,
         network_text(link.figures) + ", measured " + render::clock_time({link.measured_at}, now));
  fact("build", node.build);
  fact("boot id", node.boot_id);
  fact("joined", time(node.joined_at));
  fact("certificate until", time(node.certificate_expires_at));
  fact("drained since", time(node.drained_at));
  fact("removed", time(node.removed_at));
  return Exit::kDone;
}

// Implements `drain` and `undrain`, which differ in a path and a word.
Result<Exit> change(const Arguments& arguments, Context& context, const std::string& path,
                    const std::string& done) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string node = arguments.text("NODE");
  NSA_TRY_ASSIGN(const auto answer, daemon.post(node_target(node, "/" + path)));
  if (context.output == Output::kJson)
    context.io.out << json_text(answer) << "\n";
  else
    context.io.out << "node " << node << ": " << done << "\n";
  return Exit::kDone;
}

Result<Exit> run_node_rm(const Arguments& arguments, Context& context) {
  const std::string node = arguments.text("NODE");
  NSA_TRY_ASSIGN(const bool really,
                 confirm_removal(arguments, context,
                                 "node " + node + " and refuse its certificate from now on",
                                 "say --yes to do it: nsactl node rm -y " + node));
  if (!really) return Exit::kFailed;
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.remove(node_target(node)));
  if (context.output == Output::kJson)
    context.io.out << json_text(answer) << "\n";
  else
    context.io.out << "node " << node << " removed; its certificate is refused from now on\n";
  return Exit::kDone;
}

Positional node_argument() {
  return {"NODE", ValueType::kText, "name of a node, as nsactl node ls shows it"};
}

} // namespace

Verb node_token_verb() {
  Verb verb;
  verb.name = "node token";
  verb.summary = "Print a token by which one other node may join this nsad";
  verb.detail = "The token is good for one node and ten minutes. It holds a secret, and the "
                "fingerprint by which the node recognises this head. This nsad must be a head: "
                "cluster.address in nsad.toml.";
  verb.examples = {
      {"nsactl node token", "then, on the other node: nsad --join HEAD:9465 --token T"},
      {"nsactl node token -q > token", "for nsad --token-file"}};
  verb.run = run_token;
  return verb;
}

Verb node_ls_verb() {
  Verb verb;
  verb.name = "node ls";
  verb.summary = "List this node and those that have joined it";
  verb.detail = "A node is lost when its head has not heard it for 3.5 s. The clock offset is the "
                "head's clock minus the node's.";
  verb.options = {{"all", 'a', ValueType::kFlag, "", "removed nodes, too"}};
  verb.examples = {{"nsactl node ls", "who is there?"},
                   {"nsactl node ls -o wide", "with builds and certificates"}};
  verb.run = run_node_ls;
  return verb;
}

Verb node_show_verb() {
  Verb verb;
  verb.name = "node show";
  verb.summary = "Show all that is known about a node";
  verb.positionals = {node_argument()};
  verb.examples = {{"nsactl node show node2", "its build, devices, clock and certificate"}};
  verb.run = run_show;
  return verb;
}

Verb node_drain_verb() {
  Verb verb;
  verb.name = "node drain";
  verb.summary = "Start no new run on a node; runs there continue";
  verb.detail = "No run gets a place there, also after a restart of nsad. A run that has its slots "
                "keeps them, and is restarted after a failure. If the head's own node is drained, "
                "all runs wait in the queue, since rank 0 of each has its place there.";
  verb.positionals = {node_argument()};
  verb.examples = {{"nsactl node drain node2", "before an upgrade of the machine"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    return change(arguments, context, "drain", "drained; no new run starts there");
  };
  return verb;
}

Verb node_undrain_verb() {
  Verb verb;
  verb.name = "node undrain";
  verb.summary = "Let runs start on a drained node again";
  verb.positionals = {node_argument()};
  verb.examples = {{"nsactl node undrain node2", "runs that waited start"}};
  verb.run = [](const Arguments& arguments, Context& context) {
    return change(arguments, context, "undrain", "runs may start there again");
  };
  return verb;
}

Verb node_rm_verb() {
  Verb verb;
  verb.name = "node rm";
  verb.summary = "Remove a node from the cluster and refuse its certificate";
  verb.detail = "Its link ends at once, and its nsad ends with the reason. To take it back, let it "
                "join with a new token.";
  verb.positionals = {node_argument()};
  verb.options = {yes_option()};
  verb.examples = {{"nsactl node rm node2", "it was sold, or its key may be known"}};
  verb.run = run_node_rm;
  return verb;
}

} // namespace nsa::cli
