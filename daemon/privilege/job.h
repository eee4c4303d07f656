// The jobs of nsa-starter's children: the calls of Host that must run as the submitter, by name.
// do_job() runs in the child and carries out what StarterHost requested. It blocks; use one thread.
#pragma once

#include "daemon/privilege/host.h"
#include "daemon/privilege/protocol.h"

namespace nsa::privilege {

// `descriptors` are those that followed the body in the request.
Result<Answer> do_job(Host& host, const JobBody& job, std::vector<UniqueFd> descriptors);

// Both ends use these conversions.
void to_json(nlohmann::json& json, const NewFile& file);
void from_json(const nlohmann::json& json, NewFile& file);
nlohmann::json found_json(const std::vector<manifest::Found>& found);
Result<std::vector<manifest::Found>> found_from(const nlohmann::json& json);
nlohmann::json distrust_json(const std::vector<manifest::Distrust>& distrusted);
std::vector<manifest::Distrust> distrust_from(const nlohmann::json& json);
nlohmann::json identity_json(const proc::ProcessIdentity& identity);
proc::ProcessIdentity identity_from(const nlohmann::json& json);
nlohmann::json options_json(const shim::StartOptions& options);

} // namespace nsa::privilege
