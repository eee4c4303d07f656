#include "daemon/engines/jobs.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/state/event.h"

#include <algorithm>
#include <filesystem>
#include <utility>

namespace nsa::engines {

namespace {

// A token expires after ten minutes and admits one agent.
constexpr Duration kNewTokens = std::chrono::minutes(4);
// Pause after the scheduler could not be reached.
constexpr Duration kAskAgain = std::chrono::seconds(20);
constexpr int kMostFailures = 5;
constexpr int kMostDoublings = 6;

struct File {
  std::string path, text;
};

Status write_private(const std::string& folder, const std::vector<File>& files) {
  NSA_TRY(make_folder(folder, 0700));
  for (const File& file : files)
    NSA_TRY(write_file_atomic(file.path, file.text, 0600, Survives::kProcessCrash));
  return {};
}

int ranks_on_node(const spec::ParallelSection& parallel) {
  return static_cast<int>(parallel.ranks_per_node > 0 ? parallel.ranks_per_node : parallel.ranks);
}

} // namespace

// ---- Questions ----------------------------------------------------------------------------------

const spec::RunSpec* Jobs::spec_of(const RunId& run) const {
  const spec::RunSpec* spec = options_.spec_of(run);
  return spec != nullptr && spec->engine.is_used() ? spec : nullptr;
}

const std::shared_ptr<Engine>& Jobs::engine_of(const Job& job) const {
  const auto name = choice_from<spec::EngineName>(job.row.engine);
  return options_.engines.at(name.value_or(spec::EngineName::kSlurm));
}

std::string Jobs::folder_of(const RunId& run) const {
  return options_.state_folder + "/runs/" + run + "/job";
}

JobRequest Jobs::request_of(const RunId& run, const spec::RunSpec& spec, int number) const {
  JobRequest request;
  request.run = run;
  request.number = number;
  request.nodes = static_cast<int>(spec.parallel.nodes);
  request.ranks_per_node = ranks_on_node(spec.parallel);
  request.threads = static_cast<int>(spec.train.threads);
  request.gpus = spec.parallel.device == spec::Device::kCuda;
  request.program = options_.program;
  request.folder = folder_of(run);
  request.wishes = spec.engine;
  if (const auto engine = options_.engines.find(spec.engine.name); engine != options_.engines.end())
    request.left_code = engine->second->left_code();
  if (auto head = options_.address()) request.head = std::move(*head);
  return request;
}

Status Jobs::check(spec::EngineName engine) const {
  const auto found = options_.engines.find(engine);
  if (found == options_.engines.end())
    return fail(ErrorCode::kUnsupported, "jobs of " + text_of(engine) + " are not built",
                "submit without --on");
  auto address = options_.address();
  if (!address) return fail(std::move(address).error());
  auto able = found->second->check();
  if (!able)
    able.error().next = "start nsad where " + found->second->title() +
                        "'s programs are: nsactl daemon stop && nsactl daemon start";
  return able;
}

Result<std::string> Jobs::dry_text(const spec::RunSpec& spec) const {
  NSA_TRY(check(spec.engine.name));
  const JobRequest request = request_of("RUN", spec, 1);
  return options_.engines.at(spec.engine.name)->text(request) + "\n# " +
         agent_script_path(request) + "\n" + agent_script(request);
}

std::string Jobs::title_of(const Job& job) const {
  return engine_of(job)->title() + " job " + job.row.job;
}

std::string Jobs::how_is(const RunId& run) const {
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return "its job is being submitted";
  const Job& job = found->second;
  if (!job.problem.empty()) return job.problem;
  if (job.row.job.empty()) return "its job is being submitted";
  return title_of(job) + " is " + (job.row.state.empty() ? "submitted" : job.row.state) +
         (job.row.reason.empty() ? "" : " (" + job.row.reason + ")");
}

wire::JobView Jobs::view_of(const RunId& run) const {
  wire::JobView view;
  const auto found = jobs_.find(run);
  if (found == jobs_.end()) return view;
  const Job& job = found->second;
  view.engine = job.row.engine;
  view.job = job.row.job;
  view.state = job.row.state;
  view.reason = job.problem.empty() ? job.row.reason : job.problem;
  view.submitted_at = job.row.submitted_at;
  return view;
}

// ---- The ledger ---------------------------------------------------------------------------------

Status Jobs::start() {
  NSA_TRY_ASSIGN(auto rows, tools_.ledger.jobs());
  for (store::JobRow& row : rows) {
    const auto name = choice_from<spec::EngineName>(row.engine);
    if (name && options_.engines.count(*name) != 0) jobs_[row.run].row = std::move(row);
  }
  return {};
}

void Jobs::save(const Job& job) {
  tools_.loop.batch().jobs.push_back(job.row);
  tools_.loop.flush();
}

void Jobs::note(const RunId& run, wire::EventKind kind, wire::Severity severity, std::string text) {
  const wire::JobView view = view_of(run);
  tools_.loop.note(store::note_row(tools_.clock.wall().nanoseconds, run, 0, kind, severity,
                                   std::move(text),
                                   {{"engine", view.engine},
                                    {"job", view.job},
                                    {"state", view.state},
                                    {"reason", view.reason}}));
  tools_.loop.flush();
}

// ---- What a tick does ---------------------------------------------------------------------------

void Jobs::tick() {
  std::vector<RunId> wanted;
  for (const auto& [id, run] : tools_.loop.state().runs)
    if (!has_ended(run.phase) && spec_of(id) != nullptr) wanted.push_back(id);
  for (const RunId& id : wanted) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second.row.is_over) submit(id, *spec_of(id));
  }
  const MonotonicTime now = tools_.clock.monotonic();
  std::vector<RunId> due;
  for (auto& [id, job] : jobs_) {
    if (!job.row.is_over && !job.served) job.served = options_.heard(id) >= job.row.nodes;
    if (!job.row.is_over && !job.asking && now >= job.look_at) due.push_back(id);
  }
  for (const RunId& id : due) {
    if (!std::ranges::binary_search(wanted, id)) {
      end(id);
    } else if (jobs_.at(id).row.job.empty()) {
      ask_for(id, *spec_of(id));
    } else {
      if (now - jobs_.at(id).tokens_at > kNewTokens) write_tokens(id);
      look(id);
    }
  }
}

// Stores the intent to submit a job. The job's number identifies it, so nsad finds it again after a
// crash.
void Jobs::submit(const RunId& run, const spec::RunSpec& spec) {
  Job& job = jobs_[run];
  const MonotonicTime now = tools_.clock.monotonic();
  if (now < job.look_at) return; // a pause after a failure
  job.row.run = run;
  job.row.engine = text_of(spec.engine.name);
  ++job.row.number;
  job.row.nodes = spec.parallel.nodes;
  job.previous = std::exchange(job.row.job, "");
  job.row.state.clear();
  job.row.reason.clear();
  job.row.submitted_at = tools_.clock.wall().nanoseconds;
  job.row.is_over = false;
  job.restarts = 0;
  job.maybe_over = job.served = false;
  save(job);
}

void Jobs::ask_for(const RunId& run, const spec::RunSpec& spec) {
  Job& job = jobs_.at(run);
  JobRequest request = request_of(run, spec, static_cast<int>(job.row.number));
  job.asking = true;
  write_tokens(run);
  const auto engine = options_.engines.at(spec.engine.name);
  tools_.workers.run(
      {"", "the job of run " + run},
      [engine, request = std::move(request), previous = job.previous]() -> Result<std::string> {
        if (!previous.empty()) NSA_TRY(engine->cancel(previous));
        NSA_TRY(
            write_private(request.folder, {{agent_script_path(request), agent_script(request)}}));
        return engine->allocate(request);
      },
      [this, run](Result<std::string> made) { on_submitted(run, std::move(made)); });
}

void Jobs::on_submitted(const RunId& run, Result<std::string> made) {
  Job& job = jobs_.at(run);
  job.asking = false;
  job.look_at = tools_.clock.monotonic();
  if (!made) {
    job.look_at = job.look_at + kAskAgain;
    if (std::exchange(job.problem, made.error().what) != made.error().what)
      note(run, wire::EventKind::kJobChanged, wire::Severity::kWarning,
           "no job could be submitted: " + made.error().what);
    return;
  }
  job.problem.clear();
  job.row.job = std::move(*made);
  save(job);
  note(run, wire::EventKind::kJobSubmitted, wire::Severity::kInfo,
       title_of(job) + " is to give the run " + std::to_string(job.row.nodes) +
           (job.row.nodes == 1 ? " node" : " nodes"));
}

// Each agent of the job takes one token when it starts. The scheduler may restart a job at any
// time.
void Jobs::write_tokens(const RunId& run) {
  Job& job = jobs_.at(run);
  job.tokens_at = tools_.clock.monotonic();
  std::vector<File> files;
  for (int node = 0; node < job.row.nodes; ++node) {
    auto token = options_.token();
    if (!token)
      return log::warning("jobs", "no token for the agents of a job",
                          {{"run", run}, {"why", token.error().what}});
    files.push_back({token_path(folder_of(run), node), *token + "\n"});
  }
  tools_.workers.run(
      {"", "the tokens of run " + run},
      [folder = folder_of(run), files = std::move(files)] { return write_private(folder, files); },
      [run](const Status& written) {
        if (!written)
          log::warning("jobs", "the tokens of a job cannot be written",
                       {{"run", run}, {"why", written.error().what}});
      });
}

void Jobs::look(const RunId& run) {
  Job& job = jobs_.at(run);
  job.asking = true;
  tools_.workers.run(
      {"", "the state of run " + run + "'s job"},
      [engine = engine_of(job), id = job.row.job] { return engine->state(id); },
      [this, run](Result<JobState> state) { on_state(run, std::move(state)); });
}

void Jobs::on_state(const RunId& run, Result<JobState> asked) {
  Job& job = jobs_.at(run);
  const MonotonicTime now = tools_.clock.monotonic();
  job.asking = false;
  job.look_at = now + options_.look;
  if (!asked && asked.error().code == ErrorCode::kNotFound)
    asked = JobState{"unknown", asked.error().what, JobEnd::kAgain, job.restarts};
  if (!asked) { // only the scheduler is unreachable; the agents may still work
    job.problem = asked.error().what;
    return;
  }
  job.problem.clear();
  const bool is_news = job.row.state != asked->state;
  if (is_news || job.row.reason != asked->reason) {
    job.row.state = asked->state;
    job.row.reason = asked->reason;
    save(job);
  }
  // The restarted job's agents need new tokens, because theirs are used up.
  if (asked->restarts != std::exchange(job.restarts, asked->restarts) && asked->restarts > 0)
    write_tokens(run);
  if (is_news)
    note(run, wire::EventKind::kJobChanged,
         asked->end == JobEnd::kNone ? wire::Severity::kInfo : wire::Severity::kWarning,
         how_is(run));
  const bool maybe = asked->end == JobEnd::kMaybe;
  if (maybe && !job.maybe_over) job.maybe_over_since = now;
  job.maybe_over = maybe;
  if (asked->end == JobEnd::kNone || (maybe && now - job.maybe_over_since < options_.settle))
    return;
  on_end(run, *asked);
}

// The run continues, but its nodes are gone.
void Jobs::on_end(const RunId& run, const JobState& state) {
  Job& job = jobs_.at(run);
  const MonotonicTime now = tools_.clock.monotonic();
  job.failures = job.served ? 0 : job.failures + 1;
  job.row.is_over = true;
  job.look_at = now;
  if (state.end == JobEnd::kFailed || job.failures > 0)
    job.look_at = now + options_.pause * (1 << std::clamp(job.failures - 1, 0, kMostDoublings));
  save(job);
  if (state.end == JobEnd::kCancelled) {
    tools_.loop.submit(
        {run, 0, 0,
         state::StopRequested{"the end of " + title_of(job) + ", which was cancelled", true}});
    return;
  }
  if (job.failures < kMostFailures) return;
  note(run, wire::EventKind::kJobChanged, wire::Severity::kError,
       std::to_string(job.failures) +
           " jobs in a row ended before their agents were heard; their output is in " +
           folder_of(run));
  tools_.loop.submit({run, 0, 0, state::StopRequested{"nsad, since its jobs end at once", true}});
}

// Cancels the job after the run is over or was removed.
void Jobs::end(const RunId& run) {
  Job& job = jobs_.at(run);
  job.asking = true;
  tools_.workers.run(
      {"", "the end of run " + run + "'s job"},
      [engine = engine_of(job), id = job.row.job, folder = folder_of(run),
       nodes = job.row.nodes]() -> Status {
        for (int node = 0; node < nodes; ++node) {
          std::error_code error;
          std::filesystem::remove(token_path(folder, node), error);
        }
        return id.empty() ? Status() : engine->cancel(id);
      },
      [this, run](const Status& cancelled) {
        Job& job = jobs_.at(run);
        job.asking = false;
        job.look_at = tools_.clock.monotonic() + kAskAgain;
        if (!cancelled)
          return log::warning("jobs", "a job is not cancelled yet",
                              {{"run", run}, {"why", cancelled.error().what}});
        for (int node = 0; node < job.row.nodes; ++node)
          // Only after the cancel, because a job whose agents fail counts as failed.
          options_.retire(node_name(run, node));
        job.row.is_over = true;
        job.row.state = "ENDED";
        job.row.reason = "the run is over";
        save(job);
      });
}

} // namespace nsa::engines
