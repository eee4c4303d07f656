// nsactl.toml: defaults for options that the command line does not set. Plain values; the file may
// be missing. Read through a field table, like run.toml. Pure.
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
  Answering daemon = Answering::kUser; // whose nsad is asked
  std::string system_socket = "/run/nsa/nsad.sock";
  std::vector<std::string> old_names; // no key: those of the files that were taken
};

FieldTable client_fields(ClientSpec& spec);

// Puts what the file gives over `spec`, so that a user's file can follow the host's.
std::vector<Problem> read_client_file(std::string_view toml, std::string_view file_name,
                                      ClientSpec& spec);

} // namespace nsa::spec
