#include "cli/submission.h"

#include <cstdlib>

namespace nsa::cli {

Result<Submission> make_submission(const RunFile& file, std::vector<std::string> overrides,
                                   Context& context) {
  Submission made;
  made.request.toml = file.text;
  made.request.file_name = file.name;
  made.request.folder = file.folder;
  made.request.overrides = std::move(overrides);
  made.spec = spec::parse_run_file(file.text, file.name, made.request.overrides).spec;
  for (const std::string& name : made.spec.run.pass_environment)
    if (const char* value = std::getenv(name.c_str())) made.request.environment[name] = value;
  NSA_TRY(check_environment(made.spec, context)); // only nsactl sees this environment
  return made;
}

} // namespace nsa::cli
