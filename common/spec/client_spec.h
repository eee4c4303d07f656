// nsactl.toml: defaults for options that the command line does not set, as plain values. The file
// may be missing. It is read with a field table, like run.toml. No I/O.
#pragma once

#include "common/spec/field.h"
#include "common/spec/fields.h"
#include "common/spec/problem.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

enum class Answering : uint8_t { kUser, kSystem };
constexpr auto choice_names(Answering) {
  return names_of("user", "system");
}

struct ClientSpec {
  int64_t schema = 1;
  Answering daemon = Answering::kUser; // the nsad that nsactl asks
  std::string system_socket = "/run/nsa/nsad.sock";
  std::vector<std::string> old_names; // not a key: old names in the files that were accepted
};

FieldTable client_fields(ClientSpec& spec);

// Overwrites `spec` with the file's values, so that a user's file can follow the host's.
std::vector<Problem> read_client_file(std::string_view toml, std::string_view file_name,
                                      ClientSpec& spec);

} // namespace nsa::spec
