// Kubernetes: one Indexed Job with an agent a pod, on nodes of their own. kubectl applies, reads
// and deletes it. Rendering and reading are pure.
#pragma once

#include "common/base/json.h"
#include "daemon/engines/engine.h"

namespace nsa::engines {

// Of the cluster; from nsad.toml.
struct KubernetesSettings {
  std::string image, space; // empty space: the one of kubectl's configuration
  std::string claim;        // the volume of the runs, for many nodes
  std::string state_folder; // pods see it as runs/ there, as nsad itself does
  int64_t user = 0;         // uid and gid of nsad, whom the files belong to
};

class Kubernetes final : public Engine {
public:
  explicit Kubernetes(KubernetesSettings settings) : settings_(std::move(settings)) {}
  std::string title() const override { return "Kubernetes"; }
  std::string text(const JobRequest& request) const override;
  Status check() const override;
  int left_code() const override { return 75; } // EX_TEMPFAIL: the pod's index is not completed
  Result<std::string> allocate(const JobRequest& request) override;
  Result<JobState> state(const std::string& job) override;
  Status cancel(const std::string& job) override;

private:
  std::vector<std::string> command(std::vector<std::string> words) const;
  KubernetesSettings settings_;
};

std::string kubernetes_name(const RunId& run, int number);
// A manifest of batch/v1, kind Job.
nlohmann::json kubernetes_job(const JobRequest& request, const KubernetesSettings& settings);
// Of `kubectl get job -o json`. kCorrupt: it is no Job.
Result<JobState> read_kubernetes_job(const nlohmann::json& job);

} // namespace nsa::engines
