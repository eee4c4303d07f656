#include "daemon/requests/admission.h"

#include "common/base/text.h"
#include "common/dataset/fit.h"
#include "common/dataset/mixture.h"
#include "common/estimate/estimate.h"
#include "common/spec/mixture.h"
#include "common/spec/parse.h"
#include "common/spec/reader.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/proc/node_readings.h"
#include "daemon/queries/run_files.h"
#include "daemon/requests/origin_rules.h"

#include <algorithm>

namespace nsa::control {

namespace {

wire::ProblemView view_of(const spec::Problem& p) {
  return {p.file, p.line, p.column, p.key, p.what, p.next};
}

tl::unexpected<api::SubmitFailure> refuse(const std::string& file,
                                          std::vector<spec::Problem> problems) {
  constexpr size_t kTold = 200; // nobody reads more, and the size of an answer is bounded
  spec::sort_problems(problems);
  const size_t count = problems.size();
  problems.resize(std::min(count, kTold));
  std::vector<wire::ProblemView> views;
  for (const spec::Problem& p : problems)
    views.push_back(view_of(p));
  return tl::unexpected(api::SubmitFailure{
      {ErrorCode::kInvalidArgument,
       (file.empty() ? "the run file" : file) + " has " + std::to_string(count) +
           (count == 1 ? " mistake" : " mistakes") +
           (count > kTold ? ", the first " + std::to_string(kTold) + " are shown" : ""),
       ""},
      std::move(views)});
}

// A toggle that this host needs (NVLink multicast off, say) counts as requested if the run file
// does not set it. It is then recorded, and the worker finds in effect what was requested.
void add_host_toggles(spec::RunSpec& spec) {
  for (auto& [name, value] : spec::host_toggles(privilege::environment_of_this_process()))
    spec.toggles.emplace(name, value);
}

std::string slots_text(int64_t count, bool cuda) {
  return std::to_string(count) + (cuda ? " GPU" : " CPU slot") + (count == 1 ? "" : "s");
}

// Each node needs as many slots as this one. The number of nodes is not checked, because it may
// change any time.
Result<spec::RunSpec> check_nodes(spec::RunSpec spec, const NodeCapacity& node) {
  if (!node.is_head)
    return fail(ErrorCode::kInvalidArgument,
                "the run needs " + std::to_string(spec.parallel.nodes) +
                    " nodes, and no node may join this nsad",
                "see docs/several-nodes.md, or set parallel.nodes = 1");
  if (spec.parallel.device == spec::Device::kAuto)
    spec.parallel.device =
        spec.parallel.ranks_per_node <= node.gpus ? spec::Device::kCuda : spec::Device::kCpu;
  const bool cuda = spec.parallel.device == spec::Device::kCuda;
  const int capacity = cuda ? node.gpus : node.cpu_slots;
  if (spec.parallel.ranks_per_node <= capacity) return spec;
  return fail(ErrorCode::kInvalidArgument,
              "the run needs " + slots_text(spec.parallel.ranks_per_node, cuda) +
                  " on each node, this node has " + std::to_string(capacity),
              cuda ? "set fewer parallel.ranks_per_node, or parallel.device = \"cpu\""
                   : "set fewer parallel.ranks_per_node, or more resources.cpu_slots in nsad.toml");
}

// `here_alone`: the run file asks for one node explicitly.
Result<spec::RunSpec> resolve_device(spec::RunSpec spec, const NodeCapacity& node,
                                     bool here_alone) {
  if (spec.engine.is_used()) { // the job of the other scheduler provides the slots
    const auto problem = node.engine_problems.find(spec.engine.name);
    return problem == node.engine_problems.end() ? Result<spec::RunSpec>(std::move(spec))
                                                 : fail(problem->second);
  }
  if (spec.parallel.device != spec::Device::kCpu && node.gpus_pending)
    return fail(ErrorCode::kUnavailable, "the GPUs of this node are still being listed",
                "try again");
  if (spec.parallel.nodes > 1) return check_nodes(std::move(spec), node);
  const auto ranks = static_cast<int>(spec.parallel.ranks);
  const bool may_spread = node.is_head && !here_alone;
  const int most_gpus =
      // Rank 0 runs on this node.
      node.gpus + (may_spread && node.gpus > 0 ? node.gpus_elsewhere : 0);
  if (spec.parallel.device ==
      spec::Device::kAuto) // the choice is shown in the run's events and in `nsactl status`
    spec.parallel.device = most_gpus >= ranks ? spec::Device::kCuda : spec::Device::kCpu;
  const bool cuda = spec.parallel.device == spec::Device::kCuda;
  const int capacity = cuda ? node.gpus : node.cpu_slots;
  if (ranks <= capacity) return spec;
  if (may_spread) {
    // NCCL must listen beyond this host. It chooses the interface by itself.
    if (cuda) spec.toggles.emplace("nccl.socket_interface", "");
    const int elsewhere = cuda ? node.gpus_elsewhere : node.cpu_slots_elsewhere;
    if (capacity > 0 && ranks <= capacity + elsewhere) return spec;
    return fail(ErrorCode::kInvalidArgument,
                "the run needs " + slots_text(ranks, cuda) + ", this node has " +
                    std::to_string(capacity) + " and the nodes that are heard have " +
                    std::to_string(elsewhere),
                "set fewer parallel.ranks, or more nodes: nsactl node ls");
  }
  return fail(ErrorCode::kInvalidArgument,
              "the run needs " + slots_text(ranks, cuda) + ", this node has " +
                  std::to_string(capacity),
              cuda ? "set fewer parallel.ranks, or parallel.device = \"cpu\""
                   : "set fewer parallel.ranks, or more resources.cpu_slots in nsad.toml");
}

tl::expected<spec::RunSpec, api::SubmitFailure>
check(spec::Parsed parsed, const RunFile& file, const NodeCapacity& node, const FileOpener& open) {
  spec::resolve_paths(parsed.spec, file.folder);
  add_host_toggles(parsed.spec);
  std::vector<spec::Problem> problems = parsed.problems;
  const auto add = [&](const std::string& key, const std::string& what, const std::string& next) {
    problems.push_back(spec::problem_at(parsed, file.name, key, what, next));
  };
  const dataset::Fit fit = dataset::check_fit(parsed, file.name, open);
  problems.insert(problems.end(), fit.problems.begin(), fit.problems.end());
  for (const dataset::Absent& absent : fit.absent)
    add(absent.key, absent.what, absent.next);
  if (!spec::is_sound(parsed, "parallel.ranks") || !spec::is_sound(parsed, "parallel.device"))
    return refuse(file.name, std::move(problems));
  const bool here_alone = std::ranges::any_of(parsed.set_keys, [](const std::string& key) {
    return key == "parallel.nodes" || key == "parallel.ranks_per_node";
  });
  auto resolved = resolve_device(parsed.spec, node, here_alone);
  if (!resolved && resolved.error().code != ErrorCode::kUnavailable)
    add(parsed.spec.engine.is_used() ? "engine.name" : "parallel.ranks", resolved.error().what,
        resolved.error().next);
  // Validates again now that "auto" has become a device. The file has passed all other rules.
  if (resolved && problems.empty())
    for (const spec::Problem& p : spec::validate(*resolved))
      add(p.key, p.what, p.next);
  if (!problems.empty()) return refuse(file.name, std::move(problems));
  // The run file is not at fault.
  if (!resolved) return control::refuse(std::move(resolved.error()));
  return std::move(*resolved);
}

} // namespace

tl::unexpected<api::SubmitFailure> refuse(Error error) {
  return tl::unexpected(api::SubmitFailure{std::move(error), {}});
}

nlohmann::json estimate_of(const spec::RunSpec& spec) {
  const auto cpuinfo = read_file("/proc/cpuinfo", 1 << 24);
  return estimate::estimate(spec,
                            estimate::choose_placement(spec,
                                                       spec.parallel.device == spec::Device::kCuda,
                                                       cpuinfo.value_or("")),
                            spec.plan.tokens_per_second);
}

tl::expected<Admitted, api::SubmitFailure> admit(const RunFile& file, const NodeCapacity& node,
                                                 const FileOpener& open) {
  spec::Parsed parsed = spec::parse_run_file(file.toml, file.name, file.overrides);
  std::vector<std::string> old_names = parsed.old_names;
  auto checked = check(std::move(parsed), file, node, open);
  if (!checked) return tl::unexpected(std::move(checked.error()));
  Admitted admitted;
  admitted.spec = std::move(*checked);
  admitted.spec_json = spec::to_json(admitted.spec);
  admitted.digest = spec::digest(admitted.spec);
  admitted.toml = spec::print_toml(admitted.spec, false);
  admitted.estimate = estimate_of(admitted.spec);
  admitted.warnings = spec::warnings(admitted.spec);
  admitted.warnings.insert(admitted.warnings.begin(), old_names.begin(), old_names.end());
  admitted.old_names = std::move(old_names);
  return admitted;
}

std::vector<uint64_t> usable_steps(const std::vector<store::CheckpointRow>& rows, const RunId& run,
                                   const std::vector<manifest::Found>& found) {
  std::vector<uint64_t> steps;
  for (const store::CheckpointRow& view : checkpoints_on_disk(rows, run, found, false))
    if (view.state != wire::CheckpointState::kCorrupt &&
        view.state != wire::CheckpointState::kDeleted)
      steps.push_back(view.step);
  return steps;
}

tl::expected<void, api::SubmitFailure> check_parent(const RunFile& file, const spec::RunSpec& spec,
                                                    const Parent& parent,
                                                    const std::vector<manifest::Found>& found,
                                                    const FileOpener& open) {
  const spec::Origin& origin = parent.origin;
  std::vector<Misfit> misfits = shape_misfits(origin, parent.spec, spec);
  const auto add = [&](std::optional<Misfit> misfit) {
    if (misfit) misfits.push_back(std::move(*misfit));
  };
  add(step_misfit(origin, usable_steps(parent.checkpoints, origin.run, found)));
  std::string trained_on;
  for (const manifest::Found& one : found)
    if (one.step == origin.step && one.manifest) trained_on = one.manifest->data.dataset_digest;
  auto text = dataset::read_text(spec.data, open);
  if (!text) return refuse(text.error());
  // All data sets of a mixture have the same tokenizer.
  dataset::Manifest& ours = text->manifests.front();
  ours.digest = text->digest;
  std::optional<dataset::Manifest> theirs;
  if (auto read = dataset::read_text(parent.spec.data, open))
    theirs = std::move(read->manifests.front());
  auto misfit = tokenizer_misfit(origin, theirs, trained_on, ours);
  if (misfit) misfit->key = spec::source_key(spec.data, 0);
  add(std::move(misfit));
  if (misfits.empty()) return {};
  const spec::Parsed parsed = spec::parse_run_file(file.toml, file.name, file.overrides);
  std::vector<spec::Problem> problems;
  for (const Misfit& misfit : misfits)
    problems.push_back(spec::problem_at(parsed, file.name, misfit.key, misfit.what, misfit.next));
  return refuse(file.name, std::move(problems));
}

Status require_means(const spec::RunSpec& spec, const std::string& folder, int64_t has,
                     WorkerCheck& worker) {
  NSA_TRY(worker.check());
  const estimate::Disk wanted = estimate::disk(spec);
  const auto free = static_cast<int64_t>(proc::disk_space(folder).first);
  if (wanted.total() - has <= free) return {};
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<uint64_t>(count)); };
  return fail(ErrorCode::kExhausted,
              "the run keeps " + std::to_string(wanted.checkpoints_kept) + " checkpoints of " +
                  bytes(wanted.checkpoint) + ", " + bytes(wanted.total()) + " in all; " + folder +
                  " has " + bytes(free) + " free",
              "free disk space there, or keep fewer: --set checkpoint.keep_last=1");
}

Status make_run_folder(privilege::Host& host, uid_t as, const std::string& folder,
                       const Admitted& admitted,
                       const std::map<std::string, std::string>* environment) {
  std::vector<privilege::NewFile> files = {{"run.toml", admitted.toml, 0640}};
  const std::vector<std::string>& names = admitted.spec.run.pass_environment;
  if (environment != nullptr && !names.empty()) {
    nlohmann::json passed = nlohmann::json::object();
    for (const std::string& name : names)
      if (const auto found = environment->find(name); found != environment->end())
        passed[name] = found->second;
    files.push_back({wire::kPassedEnvironmentName, passed.dump(), 0600});
  }
  NSA_TRY(host.make_run_folder(as, folder));
  return host.write_files(as, folder, files);
}

} // namespace nsa::control
