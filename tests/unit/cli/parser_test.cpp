#include "cli/command.h"
#include "cli/help.h"
#include "cli/parser.h"
#include "cli/verbs.h"
#include "common/base/file.h"
#include "tests/support/former_names.h"
#include "tests/support/test_paths.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <set>
#include <sstream>

namespace nsa::cli {
namespace {

Result<Parsed> parse(const std::vector<std::string>& words) {
  return parse_command(all_verbs(), words);
}
std::string hint_of(const std::vector<std::string>& words) {
  const auto parsed = parse(words);
  EXPECT_FALSE(parsed);
  return parsed ? "" : parsed.error().next;
}

TEST(Parser, FindsVerbsOptionsAndArguments) {
  const auto parsed =
      parse({"submit", "run.toml", "--set", "a=1", "-f", "--set", "b=2", "--name=x"});
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_EQ(parsed->verb->name, "submit");
  EXPECT_EQ(parsed->arguments.text("FILE"), "run.toml");
  EXPECT_EQ(parsed->arguments.all("set"), (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_EQ(parsed->arguments.text("name"), "x");
  EXPECT_TRUE(parsed->arguments.has("follow"));
  EXPECT_FALSE(parsed->arguments.has("wait"));
}

// As "--name=$NAME" with a variable that is not set.
TEST(Parser, AnEmptyValueDoesNotTakeTheNextWord) {
  const auto parsed =
      parse({"data", "fetch", "--out=", "--column=", "--tokenizer=bytes", "a", "--", "--out="});
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_TRUE(parsed->arguments.has("out"));
  EXPECT_EQ(parsed->arguments.text("out", "none"), "");
  EXPECT_EQ(parsed->arguments.text("column", "none"), "");
  EXPECT_EQ(parsed->arguments.text("tokenizer"), "bytes");
  EXPECT_EQ(parsed->arguments.all("SOURCE"), (std::vector<std::string>{"a", "--out="}));
  EXPECT_FALSE(parse({"data", "fetch", "--output=", "json", "a"})) << "no format is empty";
}

TEST(Parser, GlobalOptionsStandAnywhere) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"-o", "json", "ckpt", "ls", "x"},
                                             {"ckpt", "ls", "x", "-o", "json"},
                                             {"--output=json", "ckpt", "ls", "x"},
                                             {"ckpt", "ls", "--output", "json", "x"}}) {
    const auto parsed = parse(words);
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(parsed->verb->name, "ckpt ls");
    EXPECT_EQ(parsed->globals.text("output"), "json");
    EXPECT_EQ(parsed->arguments.text("RUN"), "x");
  }
}

TEST(Parser, StandardInputAndRepeatedArguments) {
  EXPECT_EQ(parse({"submit", "-"})->arguments.text("FILE"), "-");
  EXPECT_EQ(parse({"stop", "a", "b"})->arguments.all("RUN"), (std::vector<std::string>{"a", "b"}));
}

TEST(Parser, AnOldNameOfAnOptionIsTakenWithAWarning) {
  std::vector<Verb> verbs(1);
  verbs[0].name = "watch";
  verbs[0].options = {
      {"follow", 'f', ValueType::kFlag, "", "", false, {}, "tail"},
      {"lines", 0, ValueType::kInteger, "N", "", false, {}, "count"},
  };
  std::string lines;
  verbs[0].run = [&lines](const Arguments& arguments, Context&) -> Result<Exit> {
    lines = arguments.text("lines") + (arguments.has("follow") ? " followed" : "");
    return Exit::kDone;
  };
  std::ostringstream out, err;
  std::istringstream in;
  const auto run = [&](const std::vector<std::string>& words) {
    return run_command(verbs, words, {out, err, in});
  };
  EXPECT_EQ(run({"watch", "--tail", "--count=3"}), 0);
  EXPECT_EQ(lines, "3 followed");
  EXPECT_EQ(err.str(), "warning: --tail is an older name, which is still taken; write --follow\n"
                       "warning: --count is an older name, which is still taken; write --lines\n");
  err.str("");
  EXPECT_EQ(run({"watch", "--follow", "--lines", "4"}), 0);
  EXPECT_EQ(lines + err.str(), "4 followed");
  EXPECT_EQ(help_page(verbs, "watch").value().find("tail"), std::string::npos);
}

// Every command and option that a script may contain still exists.
TEST(Parser, EveryFormerVerbAndOptionWorks) {
  const auto verb_of = [](const std::string& name) -> const Verb* {
    for (const Verb& verb : all_verbs())
      if (verb.name == name) return &verb;
    return nullptr;
  };
  for (const std::string& name : test::former_names("verb"))
    EXPECT_NE(verb_of(name), nullptr) << name;
  const auto names = test::former_names("option");
  EXPECT_GT(names.size(), 50u);
  for (const std::string& name : names) {
    const size_t dashes = name.find(" --");
    const Verb* verb = verb_of(name.substr(0, dashes));
    ASSERT_NE(verb, nullptr) << name;
    const std::string option = name.substr(dashes + 3);
    EXPECT_TRUE(std::any_of(verb->options.begin(), verb->options.end(), [&](const Option& o) {
      return o.name == option || o.older == option;
    })) << name;
  }
}

TEST(Parser, TyposGetTheNearestName) {
  EXPECT_EQ(hint_of({"sumbit", "x"}), "did you mean 'submit'?");
  EXPECT_EQ(hint_of({"ckpt", "verfy"}), "did you mean 'ckpt verify'?");
  EXPECT_EQ(hint_of({"logs", "x", "--folow"}), "did you mean '--follow'?");
  EXPECT_EQ(hint_of({"ls", "--state", "runing"}), "did you mean 'running'?");
  EXPECT_EQ(hint_of({"qqqqqqqq"}), "the commands are listed by `nsactl help`");
}

TEST(Parser, AWrongNumberOfArgumentsNamesTheUsage) {
  EXPECT_EQ(hint_of({"submit", "a", "b"}), "usage: nsactl submit FILE [options]");
  EXPECT_EQ(hint_of({"rm"}), "usage: nsactl rm RUN... [options]");
  EXPECT_EQ(hint_of({"stop", ""}), "usage: nsactl stop RUN... [options]");
  EXPECT_EQ(hint_of({"status", "a", "b"}), "usage: nsactl status [RUN]");
}

TEST(Parser, AnUnknownOptionIsTheMistakeAndNotItsValue) {
  EXPECT_EQ(hint_of({"submit", "f", "--seq-len", "5"}), "use --set train.sequence_length=VALUE");
  EXPECT_EQ(hint_of({"submit", "f", "--seq-len=5"}), "use --set train.sequence_length=VALUE");
  EXPECT_EQ(hint_of({"submit", "f", "--synthetic-on-fail"}), "leave it out");
  EXPECT_NE(parse({"plan", "f", "--seq-len", "5"}).error().what.find("of the predecessor"),
            std::string::npos);
  EXPECT_EQ(hint_of({"submit", "f", "--nam", "x"}), "did you mean '--name'?");
  EXPECT_EQ(parse({"logs", "x", "--tail"}).error().what.find("more or fewer"), std::string::npos);
}

TEST(Parser, RefusesWhatDoesNotFit) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"ckpt"},
                                             {"submit"},
                                             {"submit", "a", "b"},
                                             {"logs", "x", "--tail", "ten"},
                                             {"logs", "x", "--since", "soon"},
                                             {"submit", "a", "--name", "x", "--name", "y"},
                                             {"ls", "extra"},
                                             {"-o"},
                                             {"logs", "x", "--tail"},
                                             {"ls", "-x"}}) {
    const auto parsed = parse(words);
    ASSERT_FALSE(parsed) << words.front();
    EXPECT_EQ(exit_of(parsed.error().code), Exit::kUsage);
    EXPECT_FALSE(parsed.error().what.empty());
  }
}

TEST(Parser, HelpIsFoundEverywhere) {
  EXPECT_EQ(parse({})->help, "");
  EXPECT_EQ(parse({"--help"})->help, "");
  EXPECT_EQ(parse({"help", "ckpt", "ls"})->help, "ckpt ls");
  EXPECT_EQ(parse({"submit", "-h"})->help, "submit");
  EXPECT_EQ(parse({"ckpt", "--help"})->help, "ckpt");
  EXPECT_EQ(parse({"--version"})->verb->name, "version");
}

TEST(Duration, TakesUnits) {
  EXPECT_EQ(parse_duration("90").value(), 90);
  EXPECT_EQ(parse_duration("1.5m").value(), 90);
  EXPECT_EQ(parse_duration("2h").value(), 7200);
  EXPECT_EQ(parse_duration("1d").value(), 86400);
  EXPECT_EQ(parse_duration("250ms").value(), 0.25);
  for (const char* bad : {"", "m", "-1", "1w", "1 m"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(Help, EveryVerbIsExplained) {
  std::set<std::string> names;
  for (const Verb& verb : all_verbs()) {
    EXPECT_TRUE(names.insert(verb.name).second) << verb.name << " twice";
    EXPECT_FALSE(verb.summary.empty()) << verb.name;
    EXPECT_NE(verb.summary.back(), '.') << verb.name;
    EXPECT_TRUE(verb.run) << verb.name;
    EXPECT_TRUE(verb.hidden || !verb.examples.empty()) << verb.name;
    for (const auto& [command, what] : verb.examples)
      EXPECT_NE(command.find("nsactl " + verb.name), std::string::npos) << command;
    for (const Option& option : verb.options) {
      EXPECT_FALSE(option.meaning.empty()) << verb.name << " --" << option.name;
      EXPECT_EQ(option.type == ValueType::kFlag, option.value_name.empty())
          << verb.name << " --" << option.name;
    }
    const auto page = help_page(all_verbs(), verb.name);
    ASSERT_TRUE(page);
    EXPECT_NE(page->find("Usage: nsactl " + verb.name), std::string::npos);
  }
  EXPECT_TRUE(help_page(all_verbs(), "ckpt"));
  EXPECT_TRUE(help_page(all_verbs(), "exit-codes"));
  EXPECT_EQ(help_page(all_verbs(), "sumbit").error().next, "did you mean 'submit'?");
}

TEST(Help, ExamplesParse) {
  for (const Verb& verb : all_verbs())
    for (const auto& [command, what] : verb.examples) {
      // The nsactl part of a pipeline, up to the next operator of the shell.
      std::istringstream words(command.substr(command.find("nsactl ") + 7));
      std::vector<std::string> list;
      for (std::string word; words >> word && word != "&&" && word != "|" && word != ">";)
        list.push_back(word);
      EXPECT_TRUE(parse(list)) << command << ": " << parse(list).error().what;
    }
}

TEST(Colour, TheOptionBeatsTheEnvironment) {
  ::unsetenv("NO_COLOR");
  ::unsetenv("CLICOLOR_FORCE");
  ::setenv("TERM", "xterm", 1);
  EXPECT_TRUE(wants_colour(ColourWhen::kAuto, true));
  EXPECT_FALSE(wants_colour(ColourWhen::kAuto, false));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(wants_colour(ColourWhen::kAuto, true));
  ::setenv("CLICOLOR_FORCE", "1", 1);
  EXPECT_TRUE(wants_colour(ColourWhen::kAuto, false));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(wants_colour(ColourWhen::kAuto, true));
  EXPECT_TRUE(wants_colour(ColourWhen::kAlways, false));
  EXPECT_FALSE(wants_colour(ColourWhen::kNever, true));
  ::unsetenv("NO_COLOR");
  ::unsetenv("CLICOLOR_FORCE");
}

// NSA_UPDATE_DOCS=1 writes the page.
TEST(Help, TheDocumentedCommandsAreTheseCommands) {
  const std::string path = test::source_folder() + "/docs/cli.md";
  const std::string begin = "<!-- generated: commands -->\n";
  auto page = read_file(path);
  ASSERT_TRUE(page) << page.error().what;
  const size_t from = page->find(begin);
  ASSERT_NE(from, std::string::npos);
  const std::string commands = commands_markdown(all_verbs());
  if (std::getenv("NSA_UPDATE_DOCS")) {
    ASSERT_TRUE(write_file_atomic(path, page->substr(0, from + begin.size()) + commands));
  } else {
    EXPECT_EQ(page->substr(from + begin.size()), commands) << "run NSA_UPDATE_DOCS=1 cli_test";
  }
}

} // namespace
} // namespace nsa::cli
