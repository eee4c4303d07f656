#include "cli/render/problems.h"

namespace nsa::render {

std::string error_text(const Error& error) {
  std::string text = "error: " + error.what + "\n";
  if (!error.next.empty()) text += "  hint: " + error.next + "\n";
  return text;
}

std::string problems_text(const std::vector<wire::ProblemView>& problems) {
  std::string text;
  for (const wire::ProblemView& problem : problems) {
    text += "  --> ";
    if (!problem.file.empty()) {
      text += problem.file;
      if (problem.line > 0) text += ":" + std::to_string(problem.line);
      if (problem.line > 0 && problem.column > 0) text += ":" + std::to_string(problem.column);
      text += "  ";
    }
    if (!problem.key.empty()) text += problem.key + ": ";
    text += problem.what + "\n";
    if (!problem.next.empty()) text += "      hint: " + problem.next + "\n";
  }
  return text;
}

} // namespace nsa::render
