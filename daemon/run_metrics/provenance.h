// What an attempt ran with: programs, machine, data set. It is stored with the attempt and shown by
// `nsactl status -o json` and in <run>/summary.json.
#pragma once

#include "daemon/run_metrics/run_record.h"

#include <filesystem>
#include <map>
#include <string>

namespace nsa::control {

// The GNU build-id of a program. It differs after every rebuild that changed the program. A file
// without one (a script) gives its checksum. Empty if the file cannot be read.
std::string program_id(const std::filesystem::path& program);

// The loader that the kernel starts a dynamic program with. Empty for other files, or if the file
// cannot be read.
std::string program_interpreter(const std::filesystem::path& program);

// Provenance at the start of an attempt, before any rank has said hello. `programs` maps names to
// files. The caller adds the digest of the data set, because that file is not nsad's.
nlohmann::json begin_provenance(const RunRecord& record,
                                const std::map<std::string, std::string>& programs);

// Adds a rank's device at the rank's index. Ranks may say hello in any order.
void note_hello(nlohmann::json& provenance, const wire::RankHello& hello);

// Compares two attempts: program -> {"before", "now"} if its id changed. If either side lacks a
// program's id, that program is left out.
nlohmann::json changed_programs(const nlohmann::json& before, const nlohmann::json& now);

} // namespace nsa::control
