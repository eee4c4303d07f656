#include "common/spec/node_spec.h"

#include "common/spec/reader.h"

namespace nsa::spec {

// clang-format off
FieldTable node_fields(NodeSpec& s) {
  return {
    {.key = "schema", .at = &s.schema, .minimum = 1, .maximum = 1,
     .meaning = "version of this file's format"},

    {.key = "resources.cpu_slots", .at = &s.resources.cpu_slots, .minimum = 0, .maximum = 4096, .unit = "ranks",
     .meaning = "ranks that compute on this node's CPU at a time; 0: one a core, at least 2"},
    {.key = "resources.gpus", .at = choice(s.resources.gpus),
     .meaning = "GPUs that runs may get; one that a foreign process uses is never given out"},
    {.key = "resources.exclude_gpus", .at = &s.resources.exclude_gpus, .maximum = 64,
     .meaning = "UUIDs of GPUs that no run gets, as `nvidia-smi -L` prints them: broken ones, or kept for others"},
    {.key = "resources.gpu_locks", .at = &s.resources.gpu_locks, .maximum = 4096,
     .meaning = "folder of the lock files, one a GPU, that every nsad of the host honours; absolute"},

    {.key = "access.administrators", .at = &s.access.administrators, .maximum = 32,
     .meaning = "group whose members may stop, cancel, resume and remove every user's runs, read them, and stop nsad; "
                "of `nsad --system`; empty: root alone"},

    {.key = "metrics.enabled", .at = &s.metrics.enabled, .meaning = "serve /metrics over HTTP"},
    {.key = "metrics.address", .at = &s.metrics.address, .maximum = 64, .meaning = "loopback address to listen on"},
    {.key = "metrics.port", .at = &s.metrics.port, .minimum = 0, .maximum = 65535,
     .meaning = "port to listen on; 0: any free one, which `nsactl daemon status` shows"},
    {.key = "metrics.socket", .at = &s.metrics.socket, .maximum = 4096,
     .meaning = "unix socket to listen on instead of address and port, with the mode of nsad's own; absolute"},
    {.key = "metrics.token_file", .at = &s.metrics.token_file, .maximum = 4096,
     .meaning = "file with a token that every scrape must carry (`Authorization: Bearer ...`), readable by nsad alone; "
                "absolute"},
    {.key = "metrics.names", .at = choice(s.metrics.names),
     .meaning = "names in `nsa_run_info`: none, those of runs, or those of users too; every account of the host can "
                "read them where neither a socket nor a token guards /metrics"},

    {.key = "storage.reserve_mib", .at = &s.storage.reserve_mib, .minimum = 0, .maximum = 1048576, .unit = "MiB",
     .meaning = "disk space set aside at start, so that a full disk still allows stopping and restarting"},

    {.key = "programs.worker", .at = &s.programs.worker, .maximum = 4096,
     .meaning = "path of nsa-worker; empty: beside nsad; absolute"},
    {.key = "programs.shim", .at = &s.programs.shim, .maximum = 4096,
     .meaning = "path of nsa-shim; empty: beside nsad; absolute"},
    {.key = "programs.worker_arguments", .at = &s.programs.worker_arguments, .maximum = 4096,
     .meaning = "appended to every rank's command line; for tests"},

    {.key = "quota.events_per_second", .at = &s.quota.events_per_second, .minimum = 0, .maximum = 1000000,
     .meaning = "events that a rank may report a second, one for each KiB begun; what is more is counted and not stored; 0: any"},
    {.key = "quota.steps_per_second", .at = &s.quota.steps_per_second, .minimum = 0, .maximum = 1000000,
     .meaning = "step reports of a rank a second, counted in the same way; 0: any"},
    {.key = "quota.log_mib_per_second", .at = &s.quota.log_mib_per_second, .minimum = 0, .maximum = 1000000, .unit = "MiB/s",
     .meaning = "output of a rank that is written to its log; what is more is counted and dropped; 0: any"},
    {.key = "quota.processes_per_rank", .at = &s.quota.processes_per_rank, .minimum = 0, .maximum = 1000000,
     .meaning = "processes and threads of an attempt, for each of its ranks, where nsad has a writable cgroup; 0: any"},
    {.key = "quota.memory_factor", .at = &s.quota.memory_factor, .minimum = 0, .maximum = 1000,
     .meaning = "memory of an attempt, as a multiple of its estimate and at least 2 GiB a rank, where nsad has a writable cgroup; 0: any"},

    {.key = "supervision.cgroup_root", .at = &s.supervision.cgroup_root, .maximum = 4096,
     .meaning = "writable cgroup v2 folder for attempts; empty: nsad's own; \"none\": process groups only"},
    {.key = "supervision.restart_daemon", .at = &s.supervision.restart_daemon,
     .meaning = "in user mode shims start nsad again when it has crashed"},

    {.key = "system.user", .at = &s.system.user, .maximum = 32,
     .meaning = "the account that `nsad --system` becomes"},
    {.key = "system.group", .at = &s.system.group, .maximum = 32,
     .meaning = "members may submit runs, and runs start as them"},
    {.key = "system.minimum_uid", .at = &s.system.minimum_uid, .minimum = 1, .maximum = 4294967294,
     .meaning = "no run starts as an account with a lower uid"},
  };
}
// clang-format on

const std::vector<TableMeaning>& node_tables() {
  static const std::vector<TableMeaning> kTables = {
      {"", ""},
      {"resources", "What this node gives to runs."},
      {"access", "Who may act for others."},
      {"metrics", "The Prometheus endpoint."},
      {"storage", "The disk under nsad's state folder."},
      {"programs", "Where nsad finds what it starts."},
      {"quota", "What a rank may take. A minute's worth of each rate may come at once; whatever is "
                "refused is told in an event."},
      {"supervision", "How ranks and nsad itself are held."},
      {"system", "Accounts of `nsad --system`; without it nothing here counts."},
  };
  return kTables;
}

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
                                  std::pair("programs.shim", parsed.spec.programs.shim)})
    if (!path.empty() && path[0] != '/')
      add_rule_problem(reading, {key}, {"must be an absolute path, not \"" + path + "\"", ""});
  const std::string& address = parsed.spec.metrics.address;
  if (!address.starts_with("127.") && address != "::1" && address != "localhost")
    add_rule_problem(reading, {"metrics.address"},
                     {"must be a loopback address, not \"" + address + "\"",
                      "the endpoint knows no users: put a proxy in front of it"});
  sort_problems(reading.problems);
  for (Problem& problem : reading.problems)
    if (problem.file.empty()) problem.file = file_name;
  parsed.problems = std::move(reading.problems);
  return parsed;
}

} // namespace nsa::spec
