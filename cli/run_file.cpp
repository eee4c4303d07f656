#include "cli/run_file.h"

#include "cli/render/problems.h"
#include "common/base/file.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/dataset/fit.h"
#include "common/dataset/generations.h"
#include "common/spec/mixture.h"
#include "common/spec/reader.h"
#include "common/spec/toml_reader.h"

#include <map>
#include <unistd.h>

namespace nsa::cli {

Result<RunFile> read_run_file(const std::string& path, Context& context) {
  RunFile file;
  std::error_code error;
  if (path == "-") {
    // One byte more than the limit, so that the reader reports a file that is too large.
    file.text.resize(spec::kMaxTomlBytes + 1);
    context.io.in.read(file.text.data(), static_cast<std::streamsize>(file.text.size()));
    file.text.resize(static_cast<size_t>(context.io.in.gcount()));
    file.name = "<stdin>";
    file.folder = std::filesystem::current_path(error).string();
    return file;
  }
  auto text = read_file_or_pipe(path, spec::kMaxTomlBytes);
  if (!text) {
    if (text.error().next.empty())
      text.error().next = "give the path of a run file; configs/ holds some to begin with";
    return fail(std::move(text.error()));
  }
  file.text = std::move(*text);
  file.name = path;
  file.folder = std::filesystem::absolute(path, error).parent_path().string();
  return file;
}

tl::unexpected<Error> refused(Context& context, const client::Refusal& refusal,
                              const std::string& file_name, const std::string& text) {
  // The problems come first, so that their summary is the last line before the prompt.
  context.io.err << render::problems_text(refusal.problems, file_name, text);
  Error error = refusal.error;
  if (!refusal.problems.empty() && error.next.empty())
    error.next = "every key with its meaning and default: nsactl config show --defaults";
  return fail(std::move(error));
}

static std::vector<wire::ProblemView> views_of(const std::vector<spec::Problem>& problems) {
  std::vector<wire::ProblemView> views;
  for (const spec::Problem& p : problems)
    views.push_back({p.file, p.line, p.column, p.key, p.what, p.next});
  return views;
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
    context.io.err << "warning: " << printable(warning) << "\n";
  if (report.problems.empty()) return {};
  context.io.err << render::problems_text(views_of(report.problems));
  std::vector<std::string> names;
  for (const spec::Problem& problem : report.problems)
    names.push_back(problem.key);
  return fail(ErrorCode::kInvalidArgument,
              "the environment sets " + join(names, ", ") + ", which nothing reads",
              "unset " + join(names, " "));
}

spec::Parsed parse_with_data(const RunFile& file, const Arguments& arguments) {
  spec::Parsed parsed = spec::parse_run_file(file.text, file.name, arguments.all("set"));
  spec::resolve_paths(parsed.spec, file.folder);
  const dataset::Fit fit = dataset::check_fit(parsed, file.name);
  parsed.problems.insert(parsed.problems.end(), fit.problems.begin(), fit.problems.end());
  spec::sort_problems(parsed.problems);
  return parsed;
}

std::optional<std::string> missing_data(const spec::RunSpec& spec) {
  for (const spec::DataSource& source : spec::sources_of(spec.data)) {
    const auto manifest = dataset::read_source(source);
    if (manifest || manifest.error().code != ErrorCode::kNotFound) continue;
    if (source.follow) return manifest.error().what;
    return "there is no data set in " + source.path + " yet: nsactl data prepare --out " +
           source.path + " TEXT...";
  }
  return std::nullopt;
}

Result<spec::Parsed> parse_or_explain(const RunFile& file, const Arguments& arguments,
                                      Context& context) {
  spec::Parsed parsed = parse_with_data(file, arguments);
  if (parsed.problems.empty()) return parsed;
  const size_t count = parsed.problems.size();
  return refused(
      context,
      {{ErrorCode::kInvalidArgument,
        file.name + " has " + std::to_string(count) + (count == 1 ? " mistake" : " mistakes"), ""},
       views_of(parsed.problems)},
      file.name, file.text);
}

} // namespace nsa::cli
