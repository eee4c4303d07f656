#include "daemon/requests/set_rules.h"

#include "common/spec/parse.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace nsa::control {

namespace {

constexpr std::array<std::string_view, 3> kKeys = {"run.name", "run.note", "run.tags"};

std::string_view set_key_of(std::string_view pair) {
  return pair.substr(0, pair.find('='));
}

} // namespace

Result<spec::RunSection> change_run_section(const nlohmann::json& stored,
                                            const std::vector<std::string>& overrides) {
  if (overrides.empty())
    return fail(ErrorCode::kInvalidArgument, "nothing to set",
                "give one of --name, --note, --tag and --untag");
  for (const std::string& pair : overrides)
    if (std::find(kKeys.begin(), kKeys.end(), set_key_of(pair)) == kKeys.end())
      return fail(ErrorCode::kInvalidArgument,
                  std::string(set_key_of(pair)) + " cannot be set on an existing run",
                  "run.name, run.note and run.tags can; other keys: nsactl resume RUN --set ...");
  spec::RunSpec spec;
  try {
    const nlohmann::json& run = stored.at("run");
    spec.run.name = run.value("name", "");
    spec.run.note = run.value("note", "");
    spec.run.tags = run.value("tags", std::vector<std::string>{});
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the stored run file has no section [run]: " + reason_of(e),
                "look at it: nsactl status RUN -o json");
  }
  const spec::Parsed parsed = spec::apply_overrides(spec, overrides);
  for (const spec::Problem& problem : parsed.problems)
    if (std::find(kKeys.begin(), kKeys.end(), problem.key) != kKeys.end())
      return fail(ErrorCode::kInvalidArgument, problem.key + ": " + problem.what, problem.next);
  return parsed.spec.run;
}

std::vector<std::string> join_overrides(std::vector<std::string> all,
                                        const std::vector<std::string>& more) {
  std::erase_if(all, [&](const std::string& before) {
    return std::any_of(more.begin(), more.end(), [&](const std::string& after) {
      return set_key_of(before) == set_key_of(after);
    });
  });
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

} // namespace nsa::control
