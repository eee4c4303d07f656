// The Kubernetes engine: one Indexed Job with one agent in each pod, each pod on its own node.
// kubectl applies, reads and deletes the job. Rendering and parsing are pure.
#pragma once

#include "common/base/json.h"
#include "daemon/engines/engine.h"

namespace nsa::engines {

// Settings of the Kubernetes cluster, from nsad.toml.
struct KubernetesSettings {
  std::string image, space; // `space`: namespace; empty selects the one of kubectl's configuration
  std::string claim;        // volume claim that holds the runs, writable by many nodes
  std::string state_folder; // pods mount its runs/ under the same path as nsad
  int64_t user = 0;         // uid and gid of nsad, which owns the files
};

class Kubernetes final : public Engine {
public:
  explicit Kubernetes(KubernetesSettings settings) : settings_(std::move(settings)) {}
  std::string title() const override { return "Kubernetes"; }
  std::string text(const JobRequest& request) const override;
  Status check() const override;
  int left_code() const override { return 75; } // EX_TEMPFAIL; the index stays incomplete
  Result<std::string> allocate(const JobRequest& request) override;
  Result<JobState> state(const std::string& job) override;
  Status cancel(const std::string& job) override;

private:
  std::vector<std::string> command(std::vector<std::string> words) const;
  KubernetesSettings settings_;
};

std::string kubernetes_name(const RunId& run, int number);
// Returns a manifest of kind Job, batch/v1.
nlohmann::json kubernetes_job(const JobRequest& request, const KubernetesSettings& settings);
// Parses the output of `kubectl get job -o json`. Error: kCorrupt if it is no Job.
Result<JobState> read_kubernetes_job(const nlohmann::json& job);

} // namespace nsa::engines
