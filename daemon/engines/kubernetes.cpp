#include "daemon/engines/kubernetes.h"

#include "daemon/proc/run_tool.h"

#include <algorithm>
#include <cmath>

namespace nsa::engines {

namespace {

constexpr Duration kKubectlLimit = std::chrono::seconds(30);
constexpr const char* kRunLabel = "nsad.run";

// If a pod is deleted or evicted, its agent exits with left_code(). The pod then counts as failed,
// and Kubernetes starts another one for the index. This limit is high, so that it is never reached.
constexpr int kMostFailedPods = 1000;

nlohmann::json labels_of(const JobRequest& request) {
  return {{"app.kubernetes.io/name", "nsad-agent"}, {kRunLabel, request.run}};
}

nlohmann::json container_of(const JobRequest& request, const KubernetesSettings& settings) {
  const std::string processors =
      std::to_string(request.ranks_per_node * std::max(1, request.threads));
  nlohmann::json resources = {{"cpu", processors}};
  if (request.gpus) resources["nvidia.com/gpu"] = std::to_string(request.ranks_per_node);
  return {
      {"name", "agent"},
      {"image", settings.image},
      {"command", {"/bin/bash", agent_script_path(request), "$(JOB_COMPLETION_INDEX)"}},
      // Kubernetes sets this variable in pods of an Indexed Job. It replaces $(...) only by
      // variables of this list, so the variable is listed here, too.
      {"env",
       {{{"name", "JOB_COMPLETION_INDEX"},
         {"valueFrom",
          {{"fieldRef",
            {{"fieldPath", "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}}}},
        {{"name", "HOME"}, {"value", "/tmp"}}}},
      {"resources", {{"requests", resources}, {"limits", resources}}},
      {"securityContext",
       {{"allowPrivilegeEscalation", false},
        {"readOnlyRootFilesystem", true},
        {"capabilities", {{"drop", {"ALL"}}}}}},
      {"volumeMounts",
       {{{"name", "runs"}, {"mountPath", settings.state_folder + "/runs"}},
        {{"name", "tmp"}, {"mountPath", "/tmp"}}}}};
}

nlohmann::json pod_of(const JobRequest& request, const KubernetesSettings& settings) {
  return {{"restartPolicy", "Never"},
          {"automountServiceAccountToken", false},
          {"enableServiceLinks", false},
          {"terminationGracePeriodSeconds",
           static_cast<int64_t>(std::ceil(request.wishes.lead_seconds))},
          {"securityContext",
           {{"runAsNonRoot", settings.user != 0},
            {"runAsUser", settings.user},
            {"runAsGroup", settings.user},
            {"fsGroup", settings.user},
            {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
          {"topologySpreadConstraints",
           {{{"maxSkew", 1},
             {"topologyKey", "kubernetes.io/hostname"},
             {"whenUnsatisfiable", "DoNotSchedule"},
             {"labelSelector", {{"matchLabels", {{kRunLabel, request.run}}}}}}}},
          {"containers", nlohmann::json::array({container_of(request, settings)})},
          {"volumes",
           {{{"name", "runs"}, {"persistentVolumeClaim", {{"claimName", settings.claim}}}},
            {{"name", "tmp"}, {"emptyDir", nlohmann::json::object()}}}}};
}

const nlohmann::json* condition(const nlohmann::json& status, const std::string& type) {
  const auto list = status.find("conditions");
  if (list == status.end() || !list->is_array()) return nullptr;
  for (const nlohmann::json& one : *list)
    if (one.is_object() && one.value("type", "") == type && one.value("status", "") == "True")
      return &one;
  return nullptr;
}

int count_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? 0 : integer_of<int>(*found).value_or(0);
}

} // namespace

std::string kubernetes_name(const RunId& run, int number) {
  return "nsad-" + run + "-" + std::to_string(number);
}

nlohmann::json kubernetes_job(const JobRequest& request, const KubernetesSettings& settings) {
  nlohmann::json metadata = {{"name", kubernetes_name(request.run, request.number)},
                             {"labels", labels_of(request)}};
  if (!settings.space.empty()) metadata["namespace"] = settings.space;
  return {
      {"apiVersion", "batch/v1"},
      {"kind", "Job"},
      {"metadata", std::move(metadata)},
      {"spec",
       {{"completionMode", "Indexed"},
        {"completions", request.nodes},
        {"parallelism", request.nodes},
        {"backoffLimit", kMostFailedPods},
        {"ttlSecondsAfterFinished", 24 * 3600},
        {"template",
         {{"metadata", {{"labels", labels_of(request)}}}, {"spec", pod_of(request, settings)}}}}}};
}

Result<JobState> read_kubernetes_job(const nlohmann::json& job) {
  if (!job.is_object() || job.value("kind", "") != "Job")
    return fail(ErrorCode::kCorrupt, "kubectl shows no Job");
  const nlohmann::json empty = nlohmann::json::object();
  const auto found = job.find("status");
  const nlohmann::json& status = found != job.end() && found->is_object() ? *found : empty;
  const auto wishes = job.find("spec");
  const int wanted = wishes == job.end() ? 0 : count_of(*wishes, "completions");
  JobState state;
  state.restarts = count_of(status, "failed");
  if (const auto* failed = condition(status, "Failed")) {
    state.state = "Failed";
    state.reason = failed->value("reason", "");
    state.end = JobEnd::kFailed;
  } else if (condition(status, "Complete") != nullptr) {
    state.state = "Complete";
    state.end = JobEnd::kAgain;
  } else {
    const int ready = count_of(status, "ready");
    state.state = ready >= wanted && wanted > 0 ? "RUNNING" : "PENDING";
    state.reason = std::to_string(ready) + " of " + std::to_string(wanted) + " pods are ready";
  }
  return state;
}

std::vector<std::string> Kubernetes::command(std::vector<std::string> words) const {
  std::vector<std::string> all = {"kubectl"};
  if (!settings_.space.empty()) all.push_back("--namespace=" + settings_.space);
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

std::string Kubernetes::text(const JobRequest& request) const {
  return kubernetes_job(request, settings_).dump(2) + "\n";
}

Status Kubernetes::check() const {
  if (settings_.image.empty() || settings_.claim.empty())
    return fail(ErrorCode::kConflict,
                "nsad.toml does not say which image and which volume pods get",
                "set kubernetes.image and kubernetes.claim: docs/kubernetes.md");
  if (auto found = proc::find_tool("kubectl"); !found) return fail(std::move(found).error());
  return {};
}

// The name identifies the job, so a job that already exists is found by it.
Result<std::string> Kubernetes::allocate(const JobRequest& request) {
  NSA_TRY(proc::run_tool({command({"apply", "--filename=-"}), text(request)}, kKubectlLimit));
  return kubernetes_name(request.run, request.number);
}

Result<JobState> Kubernetes::state(const std::string& job) {
  auto printed = proc::run_tool({command({"get", "job", job, "--output=json"})}, kKubectlLimit);
  if (printed) {
    NSA_TRY_ASSIGN(const nlohmann::json shown, parse_json(*printed, "kubectl's answer"));
    return read_kubernetes_job(shown);
  }
  if (printed.error().what.find("NotFound") == std::string::npos)
    return fail(std::move(printed).error());
  return fail(ErrorCode::kNotFound, "Kubernetes has no job " + job + " any more");
}

Status Kubernetes::cancel(const std::string& job) {
  NSA_TRY(proc::run_tool({command({"delete", "job", job, "--ignore-not-found", "--wait=false"})},
                         kKubectlLimit));
  return {};
}

} // namespace nsa::engines
