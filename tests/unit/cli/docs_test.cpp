// nsactl understands what the pages tell people to type. The real parser reads every command. Every
// key is in the tables that files are read with.
#include "cli/parser.h"
#include "cli/verbs.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/spec/client_spec.h"
#include "common/spec/fields.h"
#include "common/spec/node_spec.h"
#include "common/spec/parse.h"
#include "common/spec/toggles.h"
#include "tests/support/test_paths.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <regex>
#include <set>
#include <utility>

namespace nsa::cli {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = test::source_folder();

// Pages about the past, or about the predecessor's names.
bool is_history(const fs::path& page) {
  const std::string path = fs::relative(page, kSource).string();
  for (const char* begin :
       {"docs/lab/", "docs/measurements/", "docs/adr/", "docs/predecessor.md", "docs/changelog.md"})
    if (path.starts_with(begin)) return true;
  return false;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (const fs::path& folder : {kSource / "docs", kSource / "deploy"})
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".md" && !is_history(entry.path()))
        found.push_back(entry.path());
  for (const auto& entry : fs::directory_iterator(kSource))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

// Splits a line of shell into commands, each as its words. It understands quotes and comments, and
// ends a command at a pipe or a redirection.
std::vector<std::vector<std::string>> commands_of(const std::string& line) {
  std::vector<std::vector<std::string>> commands(1);
  std::string word;
  bool in_word = false, redirected = false;
  char quote = 0;
  const auto end_word = [&] {
    if (in_word && !std::exchange(redirected, false)) commands.back().push_back(word);
    word.clear();
    in_word = false;
  };
  for (const char c : line) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == '#' && !in_word) {
      break;
    } else if (c == '|' || c == ';' || c == '&' || c == ')' || c == '(') {
      end_word();
      commands.emplace_back();
    } else if (c == '>' || c == '<') {
      if (word.find_first_not_of("012") == std::string::npos) word.clear(), in_word = false;
      end_word();
      redirected = true;
    } else if (c == ' ' || c == '\t') {
      end_word();
    } else {
      word += c;
      in_word = true;
    }
  }
  end_word();
  return commands;
}

// Returns names such as "train.steps", "toggles.nccl.debug", "metrics.port", and whole tables.
std::set<std::string> known_keys() {
  std::set<std::string> known;
  spec::RunSpec run;
  spec::NodeSpec node;
  spec::ClientSpec client;
  for (const auto& fields :
       {spec::run_fields(run), spec::node_fields(node), spec::client_fields(client)})
    for (const spec::Field& field : fields)
      known.insert(std::string(field.key));
  for (const spec::Toggle& toggle : spec::toggle_registry()) {
    known.insert(std::string(toggle.name));
    known.insert("toggles." + std::string(toggle.name));
  }
  for (const spec::NotBuilt& entry : spec::keys_not_built())
    known.insert(std::string(entry.key));
  return known;
}
std::set<std::string> known_tables() {
  std::set<std::string> known;
  for (const auto* tables : {&spec::run_tables(), &spec::node_tables()})
    for (const spec::TableMeaning& table : *tables)
      known.insert(std::string(table.name));
  for (const spec::NotBuilt& entry : spec::keys_not_built())
    known.insert(std::string(entry.key));
  return known;
}

// Returns "" if nsactl understands the command.
std::string judge_command(const std::vector<std::string>& words) {
  std::vector<std::string> arguments(words.begin() + 1, words.end());
  std::erase(arguments, "[options]"); // part of a usage line, like "[RUN]"
  for (std::string& word : arguments) {
    if (word.starts_with('[') && word.ends_with(']')) word = word.substr(1, word.size() - 2);
    if (word == "N" || word == "R") word = "1"; // stands for a number
  }
  for (const std::string& word : arguments)
    if (word.find("...") != std::string::npos || word.find("…") != std::string::npos) return "";
  const auto parsed = parse_command(all_verbs(), arguments);
  if (!parsed) return parsed.error().what + " (" + parsed.error().next + ")";
  static const std::set<std::string> keys = known_keys();
  for (const std::string& pair : parsed->arguments.all("set")) {
    const std::string key = pair.substr(0, pair.find('='));
    if (key != "KEY" && key != "key" && keys.count(key) == 0) return "no key " + key;
  }
  return "";
}

bool is_name_of_verb(const std::string& name) {
  for (const Verb& verb : all_verbs())
    if (verb.name == name || verb.name.starts_with(name + " ")) return true;
  return false;
}

struct Judge {
  std::string page;
  int commands = 0, keys = 0;

  // If `mention` is true, the line may name a command without its arguments.
  void line_of_shell(std::string line, int number, bool mention = false) {
    if (line.starts_with("$ ")) line.erase(0, 2);
    // A line that is indented, in columns or with a drawn line is a picture or an output.
    if (line.starts_with(' ') || line.starts_with("nsactl  ") ||
        line.find("─") != std::string::npos)
      return;
    for (const auto& words : commands_of(line)) {
      if (words.empty() || fs::path(words[0]).filename() != "nsactl") continue;
      ++commands;
      if (mention && is_name_of_verb(join({words.begin() + 1, words.end()}, " "))) continue;
      const std::string wrong = judge_command(words);
      EXPECT_EQ(wrong, "") << page << ":" << number << ": " << line;
    }
  }

  // `code` is the text between backticks.
  void inline_code(const std::string& code, int number) {
    if (code.starts_with("nsactl ")) return line_of_shell(code, number, true);
    static const std::set<std::string> known = known_keys(), tables = known_tables();
    static const std::regex table(R"(\[([a-z_]+)\])");
    static const std::regex key(R"(([a-z_]+)\.([a-z_0-9]+(\.[a-z_0-9]+)*)( = .*)?)");
    static const std::set<std::string> files = {
        "cpp", "h",   "cu",          "cuh", "md",   "toml",    "py",  "json",
        "so",  "log", "safetensors", "db",  "sock", "service", "txt", "bin"};
    std::smatch match;
    if (std::regex_match(code, match, table)) {
      ++keys;
      EXPECT_TRUE(tables.count(match[1])) << page << ":" << number << ": no table " << code;
    } else if (std::regex_match(code, match, key)) {
      const std::string name = code.substr(0, code.find(" = "));
      if (tables.count(match[1]) == 0 || files.count(name.substr(name.rfind('.') + 1))) return;
      ++keys;
      EXPECT_TRUE(known.count(name)) << page << ":" << number << ": no key " << name;
    }
  }
};

// Every key of a TOML block must belong to one of the three files.
std::string judge_toml(const std::string& text) {
  const auto unknown = [](const std::vector<spec::Problem>& problems) {
    for (const spec::Problem& problem : problems)
      if (problem.what.find(" has this name") != std::string::npos || problem.key.empty())
        return spec::format_problem(problem);
    return std::string();
  };
  spec::ClientSpec client;
  const std::string as_run = unknown(spec::parse_run_file(text, "block").problems);
  if (as_run.empty() || unknown(spec::parse_node_file(text, "block").problems).empty() ||
      unknown(spec::read_client_file(text, "block", client)).empty())
    return "";
  return as_run;
}

void judge_page(const fs::path& page, Judge& judge) {
  const auto text = read_file(page);
  ASSERT_TRUE(text) << page;
  judge.page = fs::relative(page, kSource).string();
  const std::regex code("`([^`]+)`");
  bool fenced = false;
  std::string language, block, joined;
  int number = 0;
  for (std::string line : split(*text, '\n')) {
    ++number;
    if (line.starts_with("```")) {
      if (fenced && language == "toml") {
        EXPECT_EQ(judge_toml(block), "") << judge.page << ":" << number;
      }
      fenced = !fenced;
      language = fenced ? std::string(trim(line.substr(3))) : "";
      block.clear();
      continue;
    }
    if (fenced) {
      block += line + "\n";
      joined += line;
      if (joined.ends_with("\\")) {
        joined.back() = ' ';
        continue;
      }
      if (language != "toml") judge.line_of_shell(std::exchange(joined, {}), number);
      joined.clear();
      continue;
    }
    for (std::sregex_iterator at(line.begin(), line.end(), code), end; at != end; ++at)
      judge.inline_code((*at)[1], number);
  }
}

TEST(Docs, EveryCommandAndKeyIsUnderstood) {
  Judge judge;
  for (const fs::path& page : pages())
    judge_page(page, judge);
  // Checks that the test has found commands and keys at all.
  EXPECT_GT(judge.commands, 60);
  EXPECT_GT(judge.keys, 60);
}

TEST(Docs, TheJudgeFindsMistakes) {
  const auto wrong = [](const std::string& line) {
    for (const auto& words : commands_of(line))
      if (!words.empty() && words[0] == "nsactl") return judge_command(words);
    return std::string("no command");
  };
  EXPECT_EQ(wrong("nsactl submit run.toml --set train.steps=400 --follow  # more"), "");
  EXPECT_EQ(wrong("sed s/1/2/ run.toml | nsactl submit - --wait > log 2>&1"), "");
  EXPECT_EQ(wrong("nsactl data prepare --out data/mine \"my texts\" && echo done"), "");
  EXPECT_NE(wrong("nsactl submit run.toml --set train.stesp=400"), "");
  EXPECT_NE(wrong("nsactl stauts RUN"), "");
  EXPECT_NE(wrong("nsactl logs RUN --ranks 1"), "");
  EXPECT_EQ(judge_toml("schema = 1\n[train]\nsteps = 4\n"), "");
  EXPECT_EQ(judge_toml("[metrics]\nport = 0\n"), "");
  EXPECT_NE(judge_toml("[train]\nstep = 4\n"), "");
}

} // namespace
} // namespace nsa::cli
