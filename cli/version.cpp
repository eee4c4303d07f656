#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/verb.h"
#include "common/base/build_info.h"

namespace nsa::cli {

namespace {

nlohmann::json own_version() {
  const BuildInfo& build = build_info();
  return {{"api", wire::kApiVersion},
          {"version", build.version},
          {"commit", build.commit},
          {"compiler", build.compiler}};
}

std::string build_line(const nlohmann::json& version) {
  return version.value("version", "?") + " (" + version.value("commit", "?") + ", API " +
         std::to_string(version.value("api", 0)) + ")";
}

Result<Exit> run_version(const Arguments&, Context& context) {
  nlohmann::json both = {{"nsactl", own_version()}, {"nsad", nullptr}};
  // A request for the version never starts a daemon.
  if (auto daemon = connect(context, false))
    if (auto version = daemon->get("/v1/version")) both["nsad"] = std::move(*version);
  if (context.output == Output::kJson) {
    context.io.out << json_text(both, 2) << "\n";
    return Exit::kDone;
  }
  context.io.out << "nsactl " << build_line(both["nsactl"]) << "\n"
                 << "nsad   " << (both["nsad"].is_null() ? "not running" : build_line(both["nsad"]))
                 << "\n";
  return Exit::kDone;
}

} // namespace

Verb version_verb() {
  Verb verb;
  verb.name = "version";
  verb.summary = "Print the versions of nsactl and of the running nsad";
  verb.examples = {{"nsactl version", "which builds are in use"}};
  verb.run = run_version;
  return verb;
}

} // namespace nsa::cli
