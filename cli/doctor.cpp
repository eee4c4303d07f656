// Implements `nsactl doctor`, which checks whether this machine has what nsad and its ranks need.
// It only reads, except that it writes and removes a small file to measure the disk's speed.
#include "cli/doctor_checks.h"
#include "cli/json_text.h"
#include "cli/render/text.h"
#include "cli/verb.h"
#include "common/base/json.h"

#include <algorithm>

namespace nsa::cli {

namespace {

std::string word(Finding::Grade grade) {
  switch (grade) {
  case Finding::Grade::kGood:
    return "ok";
  case Finding::Grade::kNote:
    return "note";
  case Finding::Grade::kBad:
    return "BAD";
  }
  return "";
}

render::Colour colour(Finding::Grade grade) {
  return grade == Finding::Grade::kGood   ? render::Colour::kGreen
         : grade == Finding::Grade::kNote ? render::Colour::kYellow
                                          : render::Colour::kRed;
}

Result<Exit> run_doctor(const Arguments&, Context& context) {
  const std::vector<Finding> findings = examine(context.program_dir);
  const bool bad = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.grade == Finding::Grade::kBad;
  });
  if (context.output == Output::kJson) {
    nlohmann::json items = nlohmann::json::array();
    for (const Finding& f : findings)
      items.push_back(
          {{"what", f.what}, {"grade", word(f.grade)}, {"found", f.found}, {"fix", f.fix}});
    const nlohmann::json all = {{"schema_version", 1}, {"healthy", !bad}, {"items", items}};
    context.io.out << json_text(all, 2) << "\n";
    return bad ? Exit::kFailed : Exit::kDone;
  }
  const render::Style style{context.io.colour, context.io.unicode};
  for (const Finding& finding : findings) {
    std::string grade = word(finding.grade);
    grade.resize(5, ' ');
    std::string what = finding.what;
    what.resize(18, ' ');
    context.io.out << render::paint(grade, colour(finding.grade), style) << what
                   << printable(finding.found) << "\n";
    if (!finding.fix.empty()) context.io.out << "     fix: " << printable(finding.fix) << "\n";
  }
  return bad ? Exit::kFailed : Exit::kDone;
}

} // namespace

Verb doctor_verb() {
  Verb verb;
  verb.name = "doctor";
  verb.summary = "Check this machine, and say how to fix what is missing";
  verb.detail = "Programs, LibTorch, driver and GPUs, disk space and the speed of fsync, shared "
                "memory, limits, clock, the metrics port, cgroups. Exit code 1 if something "
                "necessary is missing.";
  verb.examples = {{"nsactl doctor", "before the first run on a machine"}};
  verb.run = run_doctor;
  return verb;
}

} // namespace nsa::cli
