#include "tests/scenarios/script.h"

#include "common/base/text.h"

namespace nsa::state {

namespace {

// Blank-separated words; blanks inside quotes and brackets do not separate.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  int depth = 0;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ' ' && !quoted && depth == 0) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back().push_back(c);
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

nlohmann::json pairs_of(const std::vector<std::string>& words, size_t from) {
  nlohmann::json object = nlohmann::json::object();
  for (size_t i = from; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string key = words[i].substr(0, equals);
    const std::string text = equals == std::string::npos ? "" : words[i].substr(equals + 1);
    nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
    object[key] = value.is_discarded() ? nlohmann::json(text) : value;
  }
  return object;
}

std::string rest_of(std::string_view line, size_t marker) {
  return std::string(trim(line.substr(marker)));
}

} // namespace

Result<std::vector<Step>> read_script(const std::string& text) {
  std::vector<Step> steps;
  int number = 0;
  for (const std::string& raw : split(text, '\n')) {
    ++number;
    const std::string_view line = trim(raw);
    const auto bad = [&](const std::string& what) {
      return fail(ErrorCode::kInvalidArgument, "line " + std::to_string(number) + ": " + what);
    };
    if (line.empty() || line.front() == '#') continue;
    const bool detail = line.starts_with("->") || line.starts_with("=>") || line.front() == '~' ||
                        line.front() == '!' || line.starts_with("on ") || line == "ignored";
    if (detail && steps.empty()) return bad("expectation before any event");
    if (line.starts_with("->")) {
      steps.back().commands.push_back(rest_of(line, 2));
    } else if (line.starts_with("=>")) {
      steps.back().phases = rest_of(line, 2);
    } else if (line.front() == '~') {
      steps.back().reasons.push_back(rest_of(line, 1));
    } else if (line.front() == '!') {
      steps.back().notes.push_back(rest_of(line, 1));
    } else if (line.starts_with("on ")) {
      steps.back().slots = words_of(rest_of(line, 2));
    } else if (line == "ignored") {
      steps.back().ignored = true;
    } else {
      const auto words = words_of(line);
      Step step;
      step.line = number;
      if (words[0] == "event" && words.size() > 2) {
        nlohmann::json body = pairs_of(words, 2);
        step.event.run = body.value("run", "");
        step.event.attempt = body.value("attempt", 0);
        step.event.shim_sequence = body.value("seq", uint64_t{0});
        if (body.contains("policy") || words[1] == "submitted" || words[1] == "resume_requested")
          body["policy"] = body; // policy keys are written flat
        NSA_TRY_ASSIGN(step.event.body, body_from_json(words[1], body));
        step.run = step.event.run;
      } else if (words[0] == "up" && words.size() > 1) {
        step.kind = Step::Kind::kUp;
        step.options = pairs_of(words, 1);
        step.run = step.options.value("run", "");
      } else if (words[0] == "after" && words.size() == 2) {
        step.kind = Step::Kind::kAfter;
        step.seconds = std::stod(words[1]);
      } else if (words[0] == "gone" && words.size() == 2) {
        step.kind = Step::Kind::kGone;
        step.run = pairs_of(words, 1).value("run", "");
      } else if (words[0] == "pending") {
        step.kind = Step::Kind::kPending;
      } else {
        return bad("cannot read '" + std::string(line) + "'");
      }
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

} // namespace nsa::state
