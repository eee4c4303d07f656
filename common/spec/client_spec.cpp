#include "common/spec/client_spec.h"

#include "common/spec/reader.h"

namespace nsa::spec {

// clang-format off
FieldTable client_fields(ClientSpec& s) {
  return {
    {.key = "schema", .at = &s.schema, .minimum = 1, .maximum = 1,
     .meaning = "version of this file's format"},
    {.key = "daemon", .at = choice(s.daemon),
     .meaning = "whose nsad answers: your own, or the system's, as --system"},
    {.key = "system_socket", .at = &s.system_socket, .maximum = 4096,
     .meaning = "where the system's nsad listens; absolute"},
  };
}
// clang-format on

std::vector<Problem> read_client_file(std::string_view toml, std::string_view file_name,
                                      ClientSpec& spec) {
  const FieldTable fields = client_fields(spec);
  Reading reading;
  read_file(fields, {}, toml, std::string(file_name), {}, {}, reading);
  check_fields(fields, reading);
  if (!spec.system_socket.starts_with('/'))
    add_rule_problem(reading, {"system_socket"},
                     {"must be an absolute path, not \"" + spec.system_socket + "\"",
                      "write the path from / on"});
  spec.old_names.insert(spec.old_names.end(), reading.old_names.begin(), reading.old_names.end());
  sort_problems(reading.problems);
  for (Problem& problem : reading.problems)
    if (problem.file.empty()) problem.file = file_name;
  return std::move(reading.problems);
}

} // namespace nsa::spec
