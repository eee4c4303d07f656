// The verbs that need no nsad: config, plan, doctor, completion.
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/doctor_checks.h"
#include "cli/run_file.h"
#include "cli/verbs.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/socket.h>

namespace nsa::cli {
namespace {

using testing::HasSubstr;

const std::string kConfigs = test::source_folder() + "/configs/";

struct Ran {
  int code;
  std::string out, err;
};

Ran run(const std::vector<std::string>& words, const std::string& input = {}) {
  std::ostringstream out, err;
  std::istringstream in(input);
  const int code = run_command(
      all_verbs(), words, {out, err, in, false, false, false, nullptr, test::program_folder()});
  return {code, out.str(), err.str()};
}

TEST(Config, ValidateDrawsACaretUnderEachMistake) {
  const Ran ran = run({"config", "validate", "-"},
                      "schema = 1\n[train]\nsteps = 10\nmicro_batch = 0\n\tseq_len = 3\n"
                      "[data]\npath = \"x\"\n");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("error: train.micro_batch: must be at least 1, not 0\n"
                                 "  --> <stdin>:4:15\n"
                                 "    |\n"
                                 "  4 | micro_batch = 0\n"
                                 "    |               ^\n"));
  EXPECT_THAT(ran.err, HasSubstr("  5 | \tseq_len = 3\n"
                                 "    | \t^\n"
                                 "  hint: write train.sequence_length\n"));
  EXPECT_THAT(ran.err, HasSubstr("<stdin> has 2 mistakes"));
}

TEST(Config, ValidateAsJsonListsThem) {
  const Ran ran = run({"config", "validate", "-", "-o", "json"}, "schema = 1\n");
  EXPECT_EQ(ran.code, 2);
  const auto document = nlohmann::json::parse(ran.out);
  EXPECT_FALSE(document["valid"].get<bool>());
  EXPECT_EQ(document["problems"].size(), 2u); // data.path and train.steps
}

TEST(Config, ShowPrintsWhatReadsBack) {
  const Ran shown =
      run({"config", "show", kConfigs + "quickstart.toml", "--set", "train.steps=70"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("steps = 70\n"));
  const Ran checked = run({"config", "validate", "-"}, shown.out);
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(run({"config", "show", "--defaults"}).out, HasSubstr("dimension = 768\n"));
  EXPECT_EQ(run({"config", "show"}).code, 2);
  EXPECT_EQ(run({"config", "show", "--defaults", kConfigs + "quickstart.toml"}).code, 2);
  EXPECT_THAT(run({"plan", kConfigs + "quickstart.toml", "--rate", "0"}).err,
              HasSubstr("--rate must be above 0"));
  EXPECT_THAT(run({"wait", "x", "--timeout", "5x"}).err,
              HasSubstr("--timeout: '5x' is not a duration"));
}

TEST(Plan, SaysWhatARunTakes) {
  const Ran ran = run({"plan", kConfigs + "m7c_125m.toml", "--rate", "400000"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("116.5M parameters"));
  EXPECT_THAT(ran.out, HasSubstr("32.8k tokens a step"));
  EXPECT_THAT(ran.out, HasSubstr("1h08m at 400.0k tokens/s"));
  EXPECT_THAT(ran.out, HasSubstr("kernels    compressed, selected, sliding, selection"));
  EXPECT_THAT(ran.out, HasSubstr("           layers.products: cublaslt\n"));
  EXPECT_THAT(ran.err, HasSubstr("there is no data set in"));
  const auto json =
      nlohmann::json::parse(run({"plan", kConfigs + "m7c_125m.toml", "-o", "json"}).out);
  EXPECT_EQ(json["estimate"]["placement"]["compute"], "bf16");
  EXPECT_TRUE(json["estimate"]["seconds"].is_null());
  EXPECT_EQ(json["estimate"]["kernels"][0]["part"], "compressed");
  EXPECT_EQ(json["estimate"]["kernels"][0]["backend"], "sm90");
  const Ran cpu = run({"plan", kConfigs + "quickstart.toml", "--set", "parallel.device=cpu"});
  EXPECT_THAT(cpu.out, HasSubstr("aten, since our kernels need a GPU"));
}

TEST(Plan, TellsWhoStillSetsAVariableOfThePredecessor) {
  ::setenv("NSA_USE_SEL_MASK", "1", 1);
  const Ran ran = run({"plan", kConfigs + "m7c_125m.toml"});
  ::unsetenv("NSA_USE_SEL_MASK");
  EXPECT_THAT(ran.err, HasSubstr("warning: NSA_USE_SEL_MASK is set and has no effect here"));
}

TEST(Plan, RefusesWithTheReason) {
  const Ran ran = run({"plan", kConfigs + "m7c_3090_smoke.toml"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("\"fp16\" is refused"));
}

TEST(Completion, EveryVerbIsInEveryScript) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = completion_script(all_verbs(), shell);
    ASSERT_TRUE(script) << shell;
    for (const Verb& verb : all_verbs()) {
      if (verb.hidden) continue;
      for (const Option& option : verb.options)
        EXPECT_THAT(*script, HasSubstr(option.name)) << shell << " " << verb.name;
    }
  }
  EXPECT_FALSE(completion_script(all_verbs(), "tcsh"));
}

// fish refuses the whole script if one quote is not closed. tools/check-system-mode tries it with
// fish.
TEST(Completion, FishFindsEveryQuoteClosed) {
  std::istringstream lines(completion_script(all_verbs(), "fish").value());
  for (std::string line; std::getline(lines, line);) {
    bool open = false;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\\')
        ++i;
      else if (line[i] == '\'')
        open = !open;
    }
    EXPECT_FALSE(open) << line;
  }
}

TEST(Completion, BashCompletesForReal) {
  const auto complete = [](const std::string& words, int at) {
    const std::string script = completion_script(all_verbs(), "bash").value() + "COMP_WORDS=(" +
                               words + "); COMP_CWORD=" + std::to_string(at) +
                               "; _nsactl; echo ${COMPREPLY[@]}\n";
    const test::TemporaryFolder folder;
    FILE* pipe = ::popen(("bash " + folder.write("completion.bash", script).string()).c_str(), "r");
    char line[256] = "";
    if (std::fgets(line, sizeof line, pipe) == nullptr) line[0] = 0;
    ::pclose(pipe);
    return std::string(line);
  };
  EXPECT_EQ(complete("nsactl subm", 1), "submit\n");
  EXPECT_EQ(complete("nsactl ckpt v", 2), "verify\n");
  EXPECT_EQ(complete("nsactl submit --dry", 2), "--dry-run\n");
}

TEST(Doctor, FindsWhatIsMissing) {
  using Grade = Finding::Grade;
  EXPECT_EQ(check_program("/nonexistent", "nsad").grade, Grade::kBad);
  EXPECT_EQ(check_program("/bin", "sh").grade, Grade::kGood);
  EXPECT_EQ(check_fsync("/proc").grade, Grade::kBad);
  EXPECT_NE(check_fsync(testing::TempDir()).grade, Grade::kBad);
  EXPECT_EQ(check_cgroup("/nonexistent").grade, Grade::kNote);
  EXPECT_THAT(check_disk("/tmp/not/there/yet").found, HasSubstr("free for /tmp/not/there/yet"));
  // A port that is bound, and the same port when a process listens on it.
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&place), size), 0);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&place), &size);
  EXPECT_EQ(check_port("127.0.0.1", ntohs(place.sin_port)).grade, Grade::kGood);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  EXPECT_EQ(check_port("127.0.0.1", ntohs(place.sin_port)).grade, Grade::kNote);
}

TEST(Doctor, ReportsInBothForms) {
  const Ran text = run({"doctor"});
  EXPECT_THAT(text.out, HasSubstr("fsync"));
  const auto json = nlohmann::json::parse(run({"doctor", "-o", "json"}).out);
  EXPECT_EQ(json["healthy"].get<bool>(), text.code == 0);
}

} // namespace
} // namespace nsa::cli
