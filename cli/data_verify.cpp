// Implements `nsactl data verify`, which compares every byte of a data set with its manifest.
#include "cli/data_common.h"
#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/dataset/dataset.h"

namespace nsa::cli {
namespace {

Result<Exit> run_data_verify(const Arguments& arguments, Context& context) {
  const std::filesystem::path folder = arguments.text("FOLDER");
  NSA_TRY_ASSIGN(const auto findings, dataset::verify(folder));
  if (context.output == Output::kJson) {
    nlohmann::ordered_json json = {{"folder", folder.string()},
                                   {"sound", findings.empty()},
                                   {"findings", nlohmann::json::array()}};
    for (const auto& finding : findings)
      json["findings"].push_back({{"file", finding.file}, {"what", finding.what}});
    context.io.out << json_text(json, 2) << '\n';
  } else {
    for (const auto& finding : findings)
      context.io.out << printable(finding.file + ": " + finding.what) << '\n';
    if (findings.empty()) context.io.out << printable(folder.string()) << ": sound\n";
  }
  return findings.empty() ? Exit::kDone : Exit::kFailed;
}

} // namespace

Verb data_verify_verb() {
  Verb verb;
  verb.name = "data verify";
  verb.summary = "Check every byte of a data set against its manifest";
  verb.detail = "Names every damaged file, not only the first. Exit code 1 if there is one.";
  verb.positionals = {{"FOLDER", ValueType::kPath, "the data set"}};
  verb.examples = {{"nsactl data verify data/mine", "sizes, checksums, token ids"}};
  verb.run = run_data_verify;
  return verb;
}

} // namespace nsa::cli
