// The capacity that this nsad has for a run, and the answer to a dry run.
#include "daemon/requests/run_requests.h"

namespace nsa::control {

NodeCapacity RunRequests::capacity() const {
  NodeCapacity node{tools_.slots.capacity(spec::Device::kCpu),
                    tools_.slots.capacity(spec::Device::kCuda), tools_.slots.gpus_pending(),
                    options_.is_head};
  for (const auto engine : {spec::EngineName::kSlurm, spec::EngineName::kKubernetes})
    if (const Status able = options_.engines.check ? options_.engines.check(engine) : Status();
        !able)
      node.engine_problems[engine] = able.error();
  if (options_.is_head && options_.other_nodes)
    for (const auto& [name, places] : options_.other_nodes()) {
      node.cpu_slots_elsewhere += places.cpu_slots;
      node.gpus_elsewhere += static_cast<int>(places.gpus.size());
    }
  return node;
}

tl::expected<wire::SubmitReply, api::SubmitFailure>
RunRequests::dry_reply(const spec::RunSpec& spec, std::vector<std::string> warnings) const {
  wire::SubmitReply reply;
  reply.name = spec.run.name;
  // This is not a RunState, because no run exists.
  reply.state = ChoiceOrText<wire::RunState>("admissible");
  reply.reason =
      std::to_string(spec.parallel.ranks) + " ranks on " + spec::text_of(spec.parallel.device);
  reply.warnings = std::move(warnings);
  if (!spec.engine.is_used()) return reply;
  auto text = options_.engines.text(spec);
  if (!text) return control::refuse(std::move(text.error()));
  reply.reason += " in a job of " + spec::text_of(spec.engine.name);
  reply.job_text = std::move(*text);
  return reply;
}

} // namespace nsa::control
