#include "common/spec/node_spec.h"

#include "common/spec/reader.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <iterator>

namespace nsa::spec {

// clang-format off
static FieldTable notify_fields(NodeSpec& s) {
  return {
    {.key = "notify.command", .at = &s.notify.command, .maximum = 4096,
     .meaning = "program and arguments that nsad starts when a run ends or hangs; it gets the notice as JSON on standard input"},
    {.key = "notify.webhook", .at = &s.notify.webhook, .maximum = 4096,
     .meaning = "URL (http or https) to which nsad posts the same JSON; needs the program curl"},
    {.key = "notify.of", .at = choices(s.notify.of),
     .meaning = "what nsad notifies people of: the end of a run, a hang, or both"},
    {.key = "notify.timeout_seconds", .at = &s.notify.timeout_seconds, .minimum = 0.1, .maximum = 3600, .unit = "seconds",
     .meaning = "a command or a post that takes longer is killed"},
  };
}

static FieldTable cluster_fields(NodeSpec& s) {
  return {
    {.key = "cluster.address", .at = &s.cluster.address, .maximum = 64,
     .meaning = "address on which other nodes may join this nsad as their head, such as \"0.0.0.0\"; empty: no node may join"},
    {.key = "cluster.advertise", .at = &s.cluster.advertise, .maximum = 253,
     .meaning = "name or address by which other nodes reach this head; empty: the host's name, or cluster.address"},
    {.key = "cluster.port", .at = &s.cluster.port, .minimum = 0, .maximum = 65535,
     .meaning = "TCP port for nodes; 0: any free one, which `nsactl node ls` shows"},
    {.key = "cluster.folder", .at = &s.cluster.folder, .maximum = 4096,
     .meaning = "absolute path of the folder with the key and certificate of the head's authority; empty: `cluster` in the state "
                "folder. Only nsad may be able to read it"},
    {.key = "cluster.certificate_days", .at = &s.cluster.certificate_days, .minimum = 1, .maximum = 3650, .unit = "days",
     .meaning = "how long the certificate of a node is valid; a connected node renews its own after two thirds of that time"},
    {.key = "cluster.orphan_seconds", .at = &s.cluster.orphan_seconds, .minimum = 1, .maximum = 86400, .unit = "s",
     .meaning = "ranks on another node end themselves when the head has not reached them for this long; the head waits a little "
                "longer before it starts their run again"},
  };
}

static FieldTable kubernetes_fields(NodeSpec& s) {
  return {
    {.key = "kubernetes.image", .at = &s.kubernetes.image, .maximum = 512,
     .meaning = "container image of agents, with the same build as this nsad"},
    {.key = "kubernetes.namespace", .at = &s.kubernetes.space, .maximum = 63,
     .meaning = "namespace of the jobs; empty: the one that kubectl uses"},
    {.key = "kubernetes.claim", .at = &s.kubernetes.claim, .maximum = 253,
     .meaning = "name of the PersistentVolumeClaim (ReadWriteMany) of the folder `runs` in nsad's state folder"},
  };
}

FieldTable node_fields(NodeSpec& s) {
  FieldTable fields = {
    {.key = "schema", .at = &s.schema, .minimum = 1, .maximum = 1,
     .meaning = "version of this file's format"},

    {.key = "resources.cpu_slots", .at = &s.resources.cpu_slots, .minimum = 0, .maximum = 4096, .unit = "ranks",
     .meaning = "ranks that compute on this node's CPU at a time; 0: one a core, at least 2"},
    {.key = "resources.gpus", .at = &s.resources.gpus, .maximum = 64, .one_alone = true,
     .meaning = "GPUs that runs may get: `\"all\"`, `\"none\"`, or a list of indices and UUIDs, as `nvidia-smi -L` prints them. If "
                "nsad's environment has `CUDA_VISIBLE_DEVICES`, runs get only GPUs that it names. nsad never uses a GPU on which "
                "another program computes"},
    {.key = "resources.exclude_gpus", .at = &s.resources.exclude_gpus, .maximum = 64,
     .meaning = "UUIDs of GPUs that no run gets, as `nvidia-smi -L` prints them; for broken or reserved GPUs"},
    {.key = "resources.gpu_locks", .at = &s.resources.gpu_locks, .maximum = 4096,
     .meaning = "absolute path of the folder with a lock file for each GPU; all nsad of the host use the same folder"},

    {.key = "access.administrators", .at = &s.access.administrators, .maximum = 32,
     .meaning = "for `nsad --system`: group whose members may read, stop, cancel, resume and remove the runs of all users, "
                "and stop nsad; empty: only root may"},

    {.key = "metrics.enabled", .at = &s.metrics.enabled, .meaning = "serve /metrics over HTTP"},
    {.key = "metrics.address", .at = &s.metrics.address, .maximum = 64, .meaning = "loopback address to listen on"},
    {.key = "metrics.port", .at = &s.metrics.port, .minimum = 0, .maximum = 65535,
     .meaning = "port to listen on; 0: any free one, which `nsactl daemon status` shows"},
    {.key = "metrics.socket", .at = &s.metrics.socket, .maximum = 4096,
     .meaning = "absolute path of a unix socket to listen on instead of address and port; it has the mode of nsad's own socket"},
    {.key = "metrics.token_file", .at = &s.metrics.token_file, .maximum = 4096,
     .meaning = "absolute path of a file with a token that every scrape must carry (`Authorization: Bearer ...`); only nsad may "
                "be able to read it"},
    {.key = "metrics.names", .at = choice(s.metrics.names),
     .meaning = "names in `nsa_run_info`: none, those of runs, or those of runs and users. Without metrics.socket and "
                "metrics.token_file every account of the host can read them"},

    {.key = "storage.reserve_mib", .at = &s.storage.reserve_mib, .minimum = 0, .maximum = 1048576, .unit = "MiB",
     .meaning = "disk space reserved at start, so that runs can be stopped and restarted on a full disk"},

    {.key = "programs.worker", .at = &s.programs.worker, .maximum = 4096,
     .meaning = "absolute path of nsa-worker; empty: the one beside nsad"},
    {.key = "programs.shim", .at = &s.programs.shim, .maximum = 4096,
     .meaning = "absolute path of nsa-shim; empty: the one beside nsad"},
    {.key = "programs.worker_arguments", .at = &s.programs.worker_arguments, .maximum = 4096,
     .meaning = "appended to every rank's command line; for tests"},

    {.key = "quota.events_per_second", .at = &s.quota.events_per_second, .minimum = 0, .maximum = 1000000,
     .meaning = "events that a rank may report in a second; a large event counts once for each KiB. More are counted and not stored; 0: no limit"},
    {.key = "quota.steps_per_second", .at = &s.quota.steps_per_second, .minimum = 0, .maximum = 1000000,
     .meaning = "step reports of a rank in a second, counted in the same way; 0: no limit"},
    {.key = "quota.log_mib_per_second", .at = &s.quota.log_mib_per_second, .minimum = 0, .maximum = 1000000, .unit = "MiB/s",
     .meaning = "output of a rank that is written to its log; more is counted and dropped; 0: no limit"},
    {.key = "quota.processes_per_rank", .at = &s.quota.processes_per_rank, .minimum = 0, .maximum = 1000000,
     .meaning = "processes and threads of an attempt, multiplied by its ranks; needs a writable cgroup; 0: no limit"},
    {.key = "quota.memory_factor", .at = &s.quota.memory_factor, .minimum = 0, .maximum = 1000,
     .meaning = "memory of an attempt, as a multiple of its estimate and at least 2 GiB a rank; needs a writable cgroup; 0: no limit"},

    {.key = "supervision.cgroup_root", .at = &s.supervision.cgroup_root, .maximum = 4096,
     .meaning = "writable cgroup v2 folder for attempts; empty: nsad's own; \"none\": process groups only"},
    {.key = "supervision.restart_daemon", .at = &s.supervision.restart_daemon,
     .meaning = "in user mode a shim starts nsad again after a crash"},

    {.key = "system.user", .at = &s.system.user, .maximum = 32,
     .meaning = "the account that `nsad --system` becomes"},
    {.key = "system.group", .at = &s.system.group, .maximum = 32,
     .meaning = "group whose members may submit runs; runs start as the submitter"},
    {.key = "system.minimum_uid", .at = &s.system.minimum_uid, .minimum = 1, .maximum = 4294967294,
     .meaning = "no run starts as an account with a lower uid"},
  };
  for (FieldTable more : {cluster_fields(s), kubernetes_fields(s), notify_fields(s)})
    std::move(more.begin(), more.end(), std::back_inserter(fields));
  return fields;
}
// clang-format on

const std::vector<TableMeaning>& node_tables() {
  static const std::vector<TableMeaning> kTables = {
      {"", ""},
      {"resources", "What this node gives to runs."},
      {"access", "Who may act for others."},
      {"metrics", "The Prometheus endpoint."},
      {"storage", "The disk under nsad's state folder."},
      {"programs", "Programs that nsad starts."},
      {"quota",
       "Limits of a rank. It may use up to one minute's worth of each rate at once. An event "
       "reports what is refused."},
      {"supervision", "How nsad limits ranks and is itself restarted."},
      {"system", "Accounts of `nsad --system`; without that option this table has no effect."},
      {"cluster",
       "Other nodes that join this nsad as their head ([several nodes](several-nodes.md))."},
      {"kubernetes",
       "Runs that are submitted with `--on kubernetes` ([kubernetes](kubernetes.md))."},
      {"notify",
       "Who is notified when a run ends or hangs. A failed hook changes nothing: the event "
       "`notify_failed` of the run says why."},
  };
  return kTables;
}

namespace {
bool is_gpu_uuid(const std::string& name) {
  constexpr std::string_view kUuid = "GPU-";
  return name.starts_with(kUuid) && name.size() > kUuid.size();
}

// "all" and "none" must be the only value.
std::optional<Fault> check_gpus(const std::vector<std::string>& names) {
  if (names.empty()) return Fault{"names no GPU", "write gpus = \"none\""};
  for (const std::string& name : names) {
    const bool is_word = name == kAllGpus || name == kNoGpus;
    if (is_word && names.size() > 1)
      return Fault{"\"" + name + "\" stands beside other values", "write it alone"};
    const bool is_index =
        !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    if (!is_word && !is_index && !is_gpu_uuid(name))
      return Fault{"\"" + name + "\" is not one of: all, none, an index, a UUID",
                   "nvidia-smi -L lists indices and UUIDs: gpus = [\"0\", \"1\"]"};
  }
  return std::nullopt;
}

bool is_empty_or_address(const std::string& text) {
  in6_addr address{};
  return text.empty() || ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}
} // namespace

ParsedNode parse_node_file(std::string_view toml, std::string_view file_name) {
  ParsedNode parsed;
  const FieldTable fields = node_fields(parsed.spec);
  std::vector<std::string> tables;
  for (const TableMeaning& table : node_tables())
    if (!table.name.empty()) tables.emplace_back(table.name);
  Reading reading;
  read_file(fields, tables, toml, std::string(file_name), {}, {}, reading);
  check_fields(fields, reading);
  for (const auto& [key, path] : {std::pair("resources.gpu_locks", parsed.spec.resources.gpu_locks),
                                  std::pair("metrics.socket", parsed.spec.metrics.socket),
                                  std::pair("metrics.token_file", parsed.spec.metrics.token_file),
                                  std::pair("programs.worker", parsed.spec.programs.worker),
                                  std::pair("programs.shim", parsed.spec.programs.shim),
                                  std::pair("cluster.folder", parsed.spec.cluster.folder)})
    if (!path.empty() && path[0] != '/')
      add_rule_problem(
          reading, {key},
          {"must be an absolute path, not \"" + path + "\"", "write the path from / on"});
  const NodeNotifySection& notify = parsed.spec.notify;
  if (!notify.command.empty() && !notify.command[0].starts_with('/'))
    add_rule_problem(reading, {"notify.command"},
                     {"must begin with an absolute path, not \"" + notify.command[0] + "\"",
                      "find it with: command -v " + notify.command[0]});
  const bool plain = std::all_of(notify.webhook.begin(), notify.webhook.end(), [](char c) {
    return c > ' ' && c < '\x7f' && c != '"' && c != '\\';
  });
  if (!notify.webhook.empty() && (!plain || !(notify.webhook.starts_with("https://") ||
                                              notify.webhook.starts_with("http://"))))
    add_rule_problem(reading, {"notify.webhook"},
                     {"must be a URL that begins with https:// or http://",
                      "write it as notify.webhook = \"https://HOST/PATH\""});
  const std::string& address = parsed.spec.metrics.address;
  if (!address.starts_with("127.") && address != "::1" && address != "localhost")
    add_rule_problem(reading, {"metrics.address"},
                     {"must be a loopback address, not \"" + address + "\"",
                      address.starts_with("localhost:")
                          ? "write the port as metrics.port"
                          : "the endpoint knows no users: put a proxy in front of it"});
  if (const std::string& listen = parsed.spec.cluster.address; !is_empty_or_address(listen))
    add_rule_problem(reading, {"cluster.address"},
                     {"must be an IPv4 or IPv6 address, not \"" + listen + "\"",
                      "\"0.0.0.0\" listens on all IPv4 addresses of the machine"});
  const auto is_name = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '.' || c == ':';
    });
  };
  for (const auto& [key, name] : {std::pair("cluster.advertise", parsed.spec.cluster.advertise),
                                  std::pair("kubernetes.namespace", parsed.spec.kubernetes.space),
                                  std::pair("kubernetes.claim", parsed.spec.kubernetes.claim)})
    if (!is_name(name))
      add_rule_problem(reading, {key}, {"has a character that no name has: \"" + name + "\"", ""});
  if (reading.bad_keys.count("resources.gpus") == 0)
    if (auto fault = check_gpus(parsed.spec.resources.gpus))
      add_rule_problem(reading, {"resources.gpus"}, std::move(*fault));
  for (const std::string& name : parsed.spec.resources.exclude_gpus)
    if (!is_gpu_uuid(name))
      add_rule_problem(reading, {"resources.exclude_gpus"},
                       {"\"" + name + "\" is not the UUID of a GPU", "nvidia-smi -L lists them"});
  sort_problems(reading.problems);
  for (Problem& problem : reading.problems)
    if (problem.file.empty()) problem.file = file_name;
  parsed.problems = std::move(reading.problems);
  parsed.old_names = std::move(reading.old_names);
  return parsed;
}

} // namespace nsa::spec
