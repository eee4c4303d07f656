// What an attempt ran with: programs, machine, data set. Stored with the attempt, told by
// `nsactl status -o json` and in <run>/summary.json.
#pragma once

#include "daemon/run_metrics/run_record.h"

#include <filesystem>
#include <map>
#include <string>

namespace nsa::control {

// The GNU build-id of a program: another one after every rebuild that changed it. Of a file without
// one (a script), its checksum. Empty: it cannot be read.
std::string program_id(const std::filesystem::path& program);

// The loader that the kernel starts a dynamic program with. Empty: it is none, or cannot be read.
std::string program_interpreter(const std::filesystem::path& program);

// As an attempt begins, before any rank has said hello. `programs`: name -> file. The digest of the
// data set is the caller's to add: its file is not nsad's.
nlohmann::json begin_provenance(const RunRecord& record,
                                const std::map<std::string, std::string>& programs);

// Ranks say hello in any order; each one's device has the place of its rank.
void note_hello(nlohmann::json& provenance, const wire::RankHello& hello);

// Of two attempts: program -> {"before", "now"} where its id changed. A side that does not know an
// id says nothing about that program.
nlohmann::json changed_programs(const nlohmann::json& before, const nlohmann::json& now);

} // namespace nsa::control
