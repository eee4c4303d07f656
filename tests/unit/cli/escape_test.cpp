// Text of a rank, a run or a file never controls the terminal, whichever verb shows it. Here every
// text of nsad is an attack, and the test runs each verb.
#include "cli/command.h"
#include "cli/verbs.h"
#include "common/base/printable.h"
#include "tests/support/fake_service.h"
#include "tests/support/pty_process.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>

namespace nsa::cli {
namespace {

using ::testing::HasSubstr;
using testing_support::FakeDaemon;
using testing_support::PtyProcess;

// The attacks: a title, the clipboard (OSC 52), a cleared screen, an overwritten line, C1 codes,
// text that reads from right to left, and a false line.
const std::string kAttack = "\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\rok\b\x7f\xc2\x9b"
                            "31m\xe2\x80\xaegnp.\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c\nerror: not ours";
const std::string kNsactl = test::program_folder() + "/nsactl";

// Returns the part of `text` from the first character that a terminal would obey. It does not count
// nsactl's own line ends and, with `styled`, its own colours and redraws.
std::string obeyed(std::string text, bool styled) {
  if (styled) // removes those of nsactl itself
    for (const char* own : {"\033[0m", "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m",
                            "\033[36m", "\033[K", "\033[J", "\r"})
      for (size_t at; (at = text.find(own)) != std::string::npos;)
        text.erase(at, std::string_view(own).size());
  const std::string safe = printable(text, LineBreaks::kKeep);
  size_t at = 0;
  while (at < text.size() && at < safe.size() && text[at] == safe[at])
    ++at;
  return at == text.size() && at == safe.size() ? "" : safe.substr(at, 40);
}

class Escapes : public ::testing::Test {
protected:
  void SetUp() override {
    daemon.on_loop([this] {
      poison(daemon.service.add_run("kaaaa", "running"));
      wire::RunDetail& failed = daemon.service.add_run("kbbbb", "failed");
      poison(failed);
      failed.summary.ended_at = 1;
      daemon.service.emit_event(
          {0, 1, "kbbbb", 1, 0, "attempt_failed", "error", kAttack, {{"next", kAttack}}});
      daemon.service.emit_event(
          {0, 1, "kbbbb", 1, 0, "rank_error", "error", kAttack, {{"what", kAttack}}});
      daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", false},
                                    {1, 1, daemon.folder + "/r1.log", false}};
      daemon.service.warnings_next = {kAttack};
      daemon.service.problems_next = {{"run.toml", 1, 1, kAttack, kAttack, kAttack}};
      return 0;
    });
    std::string line = kAttack;
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::ofstream(daemon.folder + "/r1.log") << "2026-01-31T09:00:00Z stdout F \xff\x9b"
                                                "31m\n";
    std::ofstream(daemon.folder + "/r0.log") << "2026-01-31T09:00:00Z stdout F " << line
                                             << "\n2026-01-31T09:00:01Z stderr F " << line << "\n";
  }
  static void poison(wire::RunDetail& detail) {
    wire::RunSummary& run = detail.summary;
    run.name = run.reason = run.inject = run.user = run.note = kAttack;
    run.tags = {kAttack};
    detail.run_folder = kAttack;
    detail.ranks.resize(1);
    wire::RankView& rank = detail.ranks[0];
    rank.state = ChoiceOrText<wire::RankStatus>(kAttack);
    rank.phase = rank.device = rank.compute_precision = rank.exit = kAttack;
    detail.attempts.resize(2);
    for (wire::AttemptView& attempt : detail.attempts) {
      attempt.state = attempt.reason = kAttack;
      attempt.failure_class = ChoiceOrText<wire::FailureClass>(kAttack);
    }
    detail.toggles = {{1, kAttack, kAttack, kAttack, ChoiceOrText<wire::ToggleOrigin>(kAttack)}};
    wire::CheckpointView checkpoint;
    checkpoint.state = ChoiceOrText<wire::CheckpointState>(kAttack);
    checkpoint.problem = checkpoint.folder = kAttack;
    detail.checkpoints = {checkpoint};
    detail.hangs = {
        {{"rank", 1}, {"kind", kAttack}, {"phase", kAttack}, {"evidence_path", kAttack}}};
    detail.last_events = {{1,
                           1,
                           run.id,
                           1,
                           0,
                           ChoiceOrText<wire::EventKind>(kAttack),
                           ChoiceOrText<wire::Severity>(kAttack),
                           kAttack,
                           {}}};
  }
  std::pair<std::string, std::string> run(std::vector<std::string> words,
                                          const std::string& input = "") {
    words.insert(words.begin(), {"--socket", daemon.socket});
    std::ostringstream out, err;
    std::istringstream in(input);
    run_command(all_verbs(), words, {out, err, in});
    return {out.str(), err.str()};
  }

  FakeDaemon daemon;
};

TEST_F(Escapes, NoVerbLetsATextActOnTheTerminal) {
  const std::vector<std::vector<std::string>> calls = {
      {"ls", "-a"},
      {"ls", "-a", "-o", "wide"},
      {"status", "kaaaa"},
      {"status", "kbbbb", "-o", "wide"},
      {"events"},
      {"events", "kbbbb", "-o", "wide"},
      {"logs", "kbbbb"},
      {"logs", "kbbbb", "--rank", "0", "-t"},
      {"follow", "kbbbb"},
      {"wait", "kbbbb"},
      {"ckpt", "ls", "kbbbb", "-o", "wide"},
      {"resume", "kbbbb"},
      {"stop", "kaaaa"},
      {"submit", "-"},
      {"rm", "kbbbb", "--dry-run"},
      {"prune", "--keep", "0", "--dry-run"},
      {"status", kAttack},
      {"logs", "kbbbb", "--rank", kAttack},
      {kAttack},
      {"config", "validate", kAttack},
      {"data", "info", kAttack},
      {"data", "verify", kAttack},
      {"data", "prepare", "--out", "/dev/null/" + kAttack, kAttack},
  };
  for (auto words : calls)
    for (const bool as_json : {false, true}) {
      if (as_json && words.back() == "wide") continue;
      if (as_json) words.insert(words.end(), {"-o", "json"});
      const auto [out, err] = run(words, "schema = 1\nbroken = \"" + kAttack + "\"\n");
      EXPECT_EQ(obeyed(out, false), "") << words[0] << (as_json ? " as JSON" : "");
      EXPECT_EQ(obeyed(err, false), "") << words[0] << (as_json ? " as JSON" : "");
    }
}

TEST_F(Escapes, JsonKeepsTheTextsAsTheyAre) {
  const auto [out, err] = run({"status", "kaaaa", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(out)["summary"]["note"], kAttack);
}

TEST_F(Escapes, RawPrintsTheBytes) {
  EXPECT_THAT(run({"logs", "kbbbb", "--raw"}).first, HasSubstr("\x1b]52;c;ZXZpbA==\x07"));
  EXPECT_THAT(run({"logs", "kbbbb"}).first, HasSubstr("\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J"));
  EXPECT_EQ(run({"logs", "kbbbb", "--raw", "--rank", "1"}).first, "\xff\x9b"
                                                                  "31m\n")
      << "what is no text, too";
  EXPECT_THAT(run({"events", "kbbbb", "--raw"}).first, HasSubstr("\x1b[2J"));
  EXPECT_THAT(run({"ls", "-a", "--raw"}).first, HasSubstr("\x1b[2J"));
}

TEST_F(Escapes, NotOnAScreenInColourEither) {
  const std::vector<std::string> environment = {"NO_COLOR=", "CLICOLOR_FORCE=", "TERM=xterm",
                                                "LC_ALL=C.UTF-8"};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"follow", "kbbbb"}, {"status", "kbbbb"}, {"ls", "-a"}}) {
    std::vector<std::string> command = {kNsactl, "--socket", daemon.socket};
    command.insert(command.end(), words.begin(), words.end());
    PtyProcess process(command, environment);
    process.wait_exit();
    EXPECT_EQ(obeyed(process.output(), true), "") << words[0];
    EXPECT_THAT(process.output(), HasSubstr("\\x1b]0;owned\\x07"));
  }
}

} // namespace
} // namespace nsa::cli
