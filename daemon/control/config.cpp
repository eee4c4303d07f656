#include "daemon/control/config.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <algorithm>
#include <cctype>
#include <grp.h>
#include <sys/stat.h>
#include <thread>

namespace nsa::control {

Result<spec::NodeSpec> read_node_file(const std::string& path, bool must_exist) {
  auto text = read_file(path, spec::kMaxTomlBytes);
  const bool missing = !text && text.error().code == ErrorCode::kNotFound && !must_exist;
  if (!text && !missing) {
    text.error().next =
        "name a file that can be read, or leave out --config: all keys have defaults";
    return fail(std::move(text.error()));
  }
  spec::ParsedNode parsed = spec::parse_node_file(missing ? "schema = 1\n" : *text, path);
  if (!parsed.problems.empty()) {
    std::vector<std::string> lines;
    for (const spec::Problem& problem : parsed.problems)
      lines.push_back(spec::format_problem(problem));
    return fail(ErrorCode::kInvalidArgument, nsa::join(lines, "\n"),
                "docs/node-file.md lists the keys and what they may hold");
  }
  for (const std::string& old : parsed.old_names)
    log::warning("control", path + ": " + old);
  if (parsed.spec.resources.cpu_slots == 0)
    parsed.spec.resources.cpu_slots = std::max<int64_t>(2, std::thread::hardware_concurrency());
  return std::move(parsed.spec);
}

Result<std::optional<uint32_t>> administrators_of(const spec::NodeSpec& node) {
  const std::string& name = node.access.administrators;
  if (name.empty()) return std::nullopt;
  if (const group* entry = ::getgrnam(name.c_str())) return entry->gr_gid;
  return fail(ErrorCode::kInvalidArgument, "access.administrators: there is no group " + name,
              "addgroup --system " + name);
}

Result<std::string> metrics_token_of(const spec::NodeSpec& node) {
  constexpr size_t kShortest = 16, kLongest = 4096;
  const std::string& path = node.metrics.token_file;
  if (path.empty()) return std::string();
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return fail_errno("metrics.token_file: cannot read " + path,
                      "(umask 077; openssl rand -hex 32 > " + path + ")");
  if ((info.st_mode & 077) != 0)
    return fail(ErrorCode::kPermission, "metrics.token_file: others may read " + path,
                "chmod 600 " + path);
  NSA_TRY_ASSIGN(std::string token, read_file(path, kLongest));
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back())))
    token.pop_back();
  if (token.size() < kShortest)
    return fail(ErrorCode::kInvalidArgument,
                "metrics.token_file: the token in " + path + " is shorter than " +
                    std::to_string(kShortest) + " characters",
                "(umask 077; openssl rand -hex 32 > " + path + ")");
  return token;
}

} // namespace nsa::control
