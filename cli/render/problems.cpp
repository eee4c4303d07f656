#include "cli/render/problems.h"

#include "common/base/printable.h"
#include "common/base/text.h"

#include <algorithm>

namespace nsa::render {

std::string error_text(const Error& error) {
  std::string text = "error: " + printable(error.what, LineBreaks::kKeep) + "\n";
  if (!error.next.empty()) text += "  hint: " + printable(error.next, LineBreaks::kKeep) + "\n";
  return text;
}

namespace {

constexpr size_t kMostShown = 120; // most characters of a line around the place

std::string picture_of(const wire::ProblemView& problem, std::string line) {
  size_t place = static_cast<size_t>(std::max(problem.column, 1)) - 1;
  if (line.size() > kMostShown) {
    const size_t left_out = place > kMostShown / 2 ? place - kMostShown / 2 : 0;
    line = left_out < line.size() ? line.substr(left_out, kMostShown) : "";
    place -= left_out;
  }
  // Repeats tabs, so that the caret stays below its character.
  std::string below;
  for (size_t i = 0; i < place; ++i)
    below += i < line.size() && line[i] == '\t' ? '\t' : ' ';
  const std::string number = std::to_string(problem.line), margin(number.size(), ' ');
  return "  " + margin + " |\n  " + number + " | " + printable(line) + "\n  " + margin + " | " +
         below + "^\n";
}

} // namespace

std::string problems_text(const std::vector<wire::ProblemView>& problems,
                          const std::string& file_name, const std::string& text) {
  const std::vector<std::string> lines = split(text, '\n');
  std::string out;
  for (const wire::ProblemView& problem : problems) {
    // The key comes first, because "is required" alone says nothing.
    const std::string subject = problem.key.empty() ? "" : problem.key + ": ";
    out += "error: " + printable(subject + problem.what) + "\n  --> " + printable(problem.file);
    if (problem.line > 0)
      out += ":" + std::to_string(problem.line) + ":" + std::to_string(problem.column);
    out += "\n";
    const auto line = static_cast<size_t>(problem.line);
    if (problem.line > 0 && line <= lines.size() && problem.file == file_name)
      out += picture_of(problem, lines[line - 1]);
    if (!problem.next.empty()) out += "  hint: " + printable(problem.next) + "\n";
  }
  return out;
}

} // namespace nsa::render
