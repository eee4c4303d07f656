#include "nsa_model/choice/kernel_plan.h"

#include <set>

namespace nsa::choice {

namespace {

bool is_attention(Part part) {
  return part <= Part::kSliding || part == Part::kDense;
}
bool is_ours(Backend backend) {
  return backend == Backend::kSm90 || backend == Backend::kPortable ||
         backend == Backend::kCublasLt;
}

// The value of attention.kernels or layers.kernels that this kernel corresponds to.
std::string toggle_value(const PlannedKernel& kernel) {
  if (kernel.backend == Backend::kReference) return "reference";
  return is_ours(kernel.backend) ? "fused" : "aten";
}

std::string why(const PlannedKernel& kernel) {
  return kernel.falls_back ? " (" + kernel.reason + ")" : "";
}

std::string text_of(const PlannedKernel& kernel) {
  if (kernel.part == Part::kEmbeddingGradient)
    return (is_ours(kernel.backend) ? "joined" : "separate") + why(kernel);
  const std::string value = toggle_value(kernel);
  if (!is_attention(kernel.part) && kernel.part != Part::kSelection) return value + why(kernel);
  if (!kernel.variant.empty()) return value + " " + kernel.variant;
  if (kernel.backend == Backend::kSm90) return value + " hopper";
  return kernel.backend == Backend::kPortable ? value + " portable" : value;
}

std::string first_word(const std::string& text) {
  return text.substr(0, text.find(' '));
}

} // namespace

std::map<std::string, std::string> report_of(const KernelPlan& plan) {
  std::map<std::string, std::string> report;
  const bool fused_layers = plan.fused_layers();
  for (const PlannedKernel& kernel : plan.kernels) {
    const std::string part(part_name(kernel.part));
    if (fused_layers || !part.starts_with("layers.")) report[part] = text_of(kernel);
    if (kernel.part == Part::kNorm) report["layers"] = toggle_value(kernel) + why(kernel);
    if (kernel.part <= Part::kSliding && kernel.falls_back)
      report["attention"] = toggle_value(kernel) + why(kernel);
  }
  return report;
}

std::map<std::string, std::string> effective_toggles(const KernelPlan& plan) {
  std::map<std::string, std::string> effective;
  std::set<std::string> attention;
  for (const PlannedKernel& kernel : plan.kernels)
    if (is_attention(kernel.part)) attention.insert(toggle_value(kernel));
  for (const std::string& value : attention)
    effective["attention.kernels"] += (effective["attention.kernels"].empty() ? "" : "+") + value;
  effective["layers.kernels"] = plan.fused_layers() ? "fused" : "aten";
  effective["layers.embedding_gradient"] = plan.joined_embedding() ? "joined" : "separate";
  if (const PlannedKernel* dense = plan.find(Part::kDense))
    effective["attention.dense"] =
        dense->backend == Backend::kSm90 ? "fused" : first_word(dense->variant);
  return effective;
}

std::string difference(const KernelPlan& plan, const KernelCounts& counts, Pass pass) {
  const auto count = [&](Part part, Backend backend) {
    return counts.at(static_cast<size_t>(part)).at(static_cast<size_t>(backend));
  };
  for (size_t p = 0; p < kParts; ++p) {
    const Part part = static_cast<Part>(p);
    const PlannedKernel* planned = plan.find(part);
    const std::string plan_text =
        planned == nullptr
            ? "has no such part"
            : "says " + std::string(backend_name(planned->backend)) + " (" + planned->reason + ")";
    for (size_t b = 0; b < kBackends; ++b) {
      const Backend seen = static_cast<Backend>(b);
      if (count(part, seen) == 0) continue;
      const auto may_run = [&](const PlannedKernel& kernel) {
        return seen == kernel.backend || seen == kernel.other ||
               (pass == Pass::kEvaluation && seen == kernel.in_evaluation);
      };
      if (planned != nullptr && may_run(*planned)) continue;
      return std::string(part_name(part)) + " was computed by " + std::string(backend_name(seen)) +
             ", and the plan " + plan_text;
    }
    if (pass == Pass::kFirstStep && planned != nullptr && count(part, planned->backend) == 0 &&
        (!planned->other || count(part, *planned->other) == 0))
      return std::string(part_name(part)) + " was computed by no counted kernel, and the plan " +
             plan_text;
  }
  return "";
}

} // namespace nsa::choice
