#include "daemon/control/config.h"

#include "common/base/file.h"
#include "common/base/text.h"

#include <algorithm>
#include <thread>

namespace nsa::control {

Result<spec::NodeSpec> read_node_file(const std::string& path, bool must_exist) {
  auto text = read_file(path, spec::kMaxTomlBytes);
  const bool missing = !text && text.error().code == ErrorCode::kNotFound && !must_exist;
  if (!text && !missing) return fail(std::move(text.error()));
  spec::ParsedNode parsed = spec::parse_node_file(missing ? "schema = 1\n" : *text, path);
  if (!parsed.problems.empty()) {
    std::vector<std::string> lines;
    for (const spec::Problem& problem : parsed.problems)
      lines.push_back(spec::format_problem(problem));
    return fail(ErrorCode::kInvalidArgument, join(lines, "\n"),
                "docs/node-file.md lists the keys and what they may hold");
  }
  if (parsed.spec.resources.cpu_slots == 0)
    parsed.spec.resources.cpu_slots = std::max<int64_t>(2, std::thread::hardware_concurrency());
  return std::move(parsed.spec);
}

} // namespace nsa::control
