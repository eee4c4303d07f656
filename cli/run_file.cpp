#include "cli/run_file.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <filesystem>
#include <iterator>
#include <map>
#include <unistd.h>

namespace nsa::cli {

Result<RunFile> read_run_file(const std::string& path, Context& context) {
  RunFile file;
  std::error_code error;
  if (path == "-") {
    file.text.assign(std::istreambuf_iterator<char>(context.io.in), {});
    file.name = "<stdin>";
    file.folder = std::filesystem::current_path(error).string();
    return file;
  }
  NSA_TRY_ASSIGN(file.text, read_file(path, 1 << 20));
  file.name = path;
  file.folder = std::filesystem::absolute(path, error).parent_path().string();
  return file;
}

std::string picture_of(const std::vector<spec::Problem>& problems, const std::string& text) {
  const std::vector<std::string> lines = split(text, '\n');
  std::string out;
  for (const spec::Problem& problem : problems) {
    out += "error: " + problem.what + "\n  --> " + problem.file;
    if (problem.line > 0)
      out += ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column);
    if (!problem.key.empty()) out += "  " + problem.key;
    out += "\n";
    if (problem.line > 0 && problem.line <= static_cast<int>(lines.size())) {
      const std::string number = std::to_string(problem.line);
      const std::string& line = lines[static_cast<size_t>(problem.line) - 1];
      // Tabs keep their width under the caret when they are repeated.
      std::string below;
      for (int i = 1; i < problem.column; ++i)
        below += i <= static_cast<int>(line.size()) && line[static_cast<size_t>(i) - 1] == '\t'
                     ? '\t'
                     : ' ';
      const std::string margin(number.size(), ' ');
      out += "  " + margin + " |\n  " + number + " | " + line + "\n  " + margin + " | " + below +
             "^\n";
    }
    if (!problem.next.empty()) out += "  hint: " + problem.next + "\n";
  }
  return out;
}

Status check_environment(const spec::RunSpec& spec, Context& context) {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const spec::EnvironmentReport report = spec::check_environment(spec, environment);
  for (const std::string& warning : report.warnings)
    context.io.err << "warning: " << warning << "\n";
  if (report.problems.empty()) return {};
  context.io.err << picture_of(report.problems, "");
  std::vector<std::string> names;
  for (const spec::Problem& problem : report.problems)
    names.push_back(problem.key);
  return fail(ErrorCode::kInvalidArgument,
              "the environment sets " + join(names, ", ") + ", which nothing reads");
}

Result<spec::Parsed> parse_or_explain(const RunFile& file, const Arguments& arguments,
                                      Context& context) {
  spec::Parsed parsed = spec::parse_run_file(file.text, file.name, arguments.all("set"));
  if (parsed.problems.empty()) {
    spec::resolve_paths(parsed.spec, file.folder);
    return parsed;
  }
  context.io.err << picture_of(parsed.problems, file.text);
  const size_t count = parsed.problems.size();
  return fail(ErrorCode::kInvalidArgument, file.name + " has " + std::to_string(count) +
                                               (count == 1 ? " mistake" : " mistakes"));
}

} // namespace nsa::cli
