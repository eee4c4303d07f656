// top, diff, set, and output as names, YAML and columns.
#include "cli/columns.h"
#include "cli/render/table.h"
#include "cli/render/top_view.h"
#include "commands_fixture.h"
#include "common/base/text.h"

#include <gmock/gmock.h>

namespace nsa::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr WallTime kNow{1'800'000'000'000'000'000};

wire::RunDetail run_of(const RunId& id, int ranks, uint64_t step) {
  wire::RunDetail run;
  run.summary.id = id;
  run.summary.name = "a-run-with-a-long-name-" + id;
  run.summary.state = wire::RunState::kRunning;
  run.summary.tokens_per_second = 1000.0 * ranks;
  for (int r = 0; r < ranks; ++r) {
    wire::RankView& rank = run.ranks.emplace_back();
    rank.rank = r;
    rank.pid = 100 + r;
    rank.state = wire::RankStatus::kRunning;
    rank.phase = r == 1 ? "all-gather-weights" : "forward";
    rank.step = step;
    rank.resident_bytes = uint64_t(r + 1) << 30;
    rank.gpu_uuid = "GPU-" + std::to_string(r);
    rank.last_progress_at = kNow.nanoseconds - (r + 1) * int64_t{2'000'000'000};
  }
  return run;
}

render::Top two_runs() {
  const json daemon = {{"node", "n1"},
                       {"cpu_slots", 2},
                       {"cpu_slots_used", 0},
                       {"gpus_used", 2},
                       {"disk_free_bytes", 5368709120},
                       {"gpus", json::array({{{"index", 0},
                                              {"uuid", "GPU-0"},
                                              {"name", "NVIDIA H200"},
                                              {"used_bytes", 1073741824},
                                              {"memory_bytes", 150323855360},
                                              {"processes", 1},
                                              {"temperature_celsius", 61.0},
                                              {"power_watts", 412.4},
                                              {"utilization_ratio", 0.97}},
                                             {{"index", 1}, {"uuid", "GPU-9"}}})}};
  return render::top_of(daemon, {run_of("kbbbb", 3, 7), run_of("kaaaa", 1, 90)}, kNow);
}

std::vector<std::string> order_of(const render::TopOrder& order) {
  std::vector<std::string> names;
  for (const render::TopRank& rank : render::arrange(two_runs().ranks, order))
    names.push_back(rank.run + "/" + std::to_string(rank.rank.rank));
  return names;
}

TEST(Top, SortsAndFiltersRanks) {
  EXPECT_THAT(order_of({}), ElementsAre("kaaaa/0", "kbbbb/0", "kbbbb/1", "kbbbb/2"));
  EXPECT_THAT(order_of({"progress", false, ""}),
              ElementsAre("kbbbb/2", "kbbbb/1", "kaaaa/0", "kbbbb/0"));
  EXPECT_THAT(order_of({"step", true, ""}),
              ElementsAre("kbbbb/0", "kbbbb/1", "kbbbb/2", "kaaaa/0"));
  EXPECT_THAT(order_of({"memory", false, "rank 2"}), ElementsAre("kbbbb/2"));
  EXPECT_THAT(order_of({"run", false, "gather"}), ElementsAre("kbbbb/1"));
}

TEST(Top, TellsTemperatureAndWhoHoldsAGpu) {
  const render::Top top = two_runs();
  ASSERT_EQ(top.gpus.size(), 2u);
  EXPECT_EQ(top.gpus[0].holder, "kaaaa rank 0"); // the later of two runs that report this
  EXPECT_EQ(top.gpus[1].holder, "");
  EXPECT_EQ(top.ranks[0].celsius, 61);
  EXPECT_FALSE(top.ranks[1].celsius);
  const std::string screen = render::top_screen(top, top.ranks, {}, kNow, {{}, 200, 0, 0, ""});
  for (const char* text : {"61 C", "97 %", "412 W", "1.0 GiB of 140.0 GiB", "all-gather-weights",
                           "2.0s ago", "GPUs 2/2", "5.0 GiB free"})
    EXPECT_THAT(screen, HasSubstr(text));
}

TEST(Top, FitsEveryTerminalAndKeepsTheSelectedRankInSight) {
  const render::Top top = render::top_of({{"node", "n"}}, {run_of("kaaaa", 64, 5)}, kNow);
  for (const int width : {40, 60, 80, 200})
    for (const int height : {6, 24, 100}) {
      for (const int selected : {0, 30, 63}) {
        const std::string screen = render::top_screen(top, render::arrange(top.ranks, {}), {}, kNow,
                                                      {{}, width, height, selected, "q quit"});
        const auto lines = split(screen, '\n');
        EXPECT_LE(static_cast<int>(lines.size()) - 1, height);
        for (const std::string& line : lines)
          EXPECT_LE(render::display_width(line), width) << line;
        EXPECT_THAT(screen, HasSubstr("▸kaaaa")) << width << "x" << height << " " << selected;
      }
    }
}

TEST(Top, PagesOfALongTextEndWithItsLastLine) {
  size_t from = 100;
  EXPECT_EQ(render::page_of("a\nb\nc\nd\n", from, {{}, 80, 3, 0, "foot"}), "c\nd\nfoot\n");
  EXPECT_EQ(from, 2u);
}

TEST(Yaml, ReadsBackAsTheSame) {
  EXPECT_EQ(yaml_text({{"a", 1}, {"b", {{"c", "x"}, {"d", json::array()}}}}),
            "a: 1\nb:\n  c: x\n  d: []\n");
  EXPECT_EQ(yaml_text({{"items", {{{"id", "k"}, {"m", {1, 2}}}, {{"id", "null"}}}}}),
            "items:\n  - id: k\n    m:\n      - 1\n      - 2\n  - id: \"null\"\n");
  for (const char* text : {"", "yes", "1", "a: b", "- a", "a#b", "a\nb", "~", "@last", "x "})
    EXPECT_EQ(yaml_text(json(text)), json(text).dump() + "\n") << text;
}

class Views : public Commands {
protected:
  void SetUp() override {
    add_run("kaaaa", "running");
    add_run("kbbbb", "failed");
  }
};

TEST_F(Views, NamesAndYamlOfAnyCommand) {
  EXPECT_EQ(run({"ls", "-a", "-o", "name"}).out, "kaaaa\nkbbbb\n");
  EXPECT_EQ(run({"status", "kaaaa", "-o", "name"}).out, "kaaaa\n");
  const Outcome yaml = run({"status", "kaaaa", "-o", "yaml"});
  EXPECT_THAT(yaml.out, HasSubstr("\nsummary:\n"));
  EXPECT_THAT(yaml.out, HasSubstr("\n  id: kaaaa\n"));
  const Outcome none = run({"version", "-o", "name"});
  EXPECT_EQ(none.exit, static_cast<int>(exit_of(ErrorCode::kUnsupported)));
  EXPECT_THAT(none.err, HasSubstr("has no names"));
  EXPECT_THAT(run({"version", "-o", "yaml"}).out, HasSubstr("\n  version: "));
  EXPECT_EQ(run({"status", "kzzzz", "-o", "yaml"}).exit, 3);
}

TEST_F(Views, ColumnsOfAList) {
  EXPECT_EQ(run({"ls", "-a", "--columns", "state,id"}).out,
            "STATE    ID\nrunning  kaaaa\nfailed   kbbbb\n");
  const Outcome wrong = run({"ls", "-a", "--columns", "id,stat"});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean state?"));
  const Outcome both = run({"ls", "-a", "--columns", "id", "-o", "name"});
  EXPECT_EQ(both.exit, 2);
  EXPECT_THAT(both.err, HasSubstr("leave out one of the two"));
}

TEST_F(Views, TopOnceAsTableAndJson) {
  daemon.on_loop([this] {
    wire::RankView rank;
    rank.state = wire::RankStatus::kRunning;
    rank.phase = "backward";
    daemon.service.runs.at("kaaaa").ranks = {rank};
    return 0;
  });
  EXPECT_THAT(run({"top"}).out, HasSubstr("backward"));
  const Outcome told = run({"top", "-o", "json"});
  EXPECT_EQ(json::parse(told.out)["items"][0]["phase"], "backward");
  EXPECT_EQ(run({"top", "--stacks", "0"}).exit, 2) << "of which run?";
  const Outcome gone = run({"top", "kaaaa", "--stacks", "0"});
  EXPECT_EQ(gone.exit, 3) << gone.err; // there is no process 0
  EXPECT_EQ(run({"top", "--sort", "stepp"}).exit, 2);
}

TEST_F(Views, DiffTellsKeysTogglesAndPrograms) {
  daemon.on_loop([this] {
    daemon.service.attempt_specs[1] = {{"train", {{"learning_rate", 3e-3}, {"steps", 60}}},
                                       {"run", {{"name", "x"}}}};
    daemon.service.attempt_specs[2] = {{"train", {{"learning_rate", 1e-3}, {"steps", 60}}},
                                       {"run", {{"name", "x"}}}};
    wire::RunDetail& run = daemon.service.runs.at("kaaaa");
    run.summary.attempt = 2;
    run.toggles = {{1, "cuda.graphs", "auto", "auto", wire::ToggleOrigin::kDefault},
                   {2, "cuda.graphs", "auto", "off", wire::ToggleOrigin::kFallback},
                   {1, "nccl.debug", "", "", wire::ToggleOrigin::kDefault},
                   {2, "nccl.debug", "", "", wire::ToggleOrigin::kDefault}};
    run.attempts.resize(2);
    run.attempts[0].attempt = 1;
    run.attempts[0].provenance = {{"build_ids", {{"nsa-worker", "aa"}}}, {"spec_digest", "1"}};
    run.attempts[1].attempt = 2;
    run.attempts[1].provenance = {{"build_ids", {{"nsa-worker", "bb"}}}, {"spec_digest", "2"}};
    return 0;
  });
  const Outcome table = run({"diff", "kaaaa@1", "kaaaa@2"});
  EXPECT_EQ(table.exit, 0) << table.err;
  for (const char* text :
       {"train.learning_rate", "0.003", "auto, in effect: off", "build_ids.nsa-worker", "kaaaa@1"})
    EXPECT_THAT(table.out, HasSubstr(text));
  for (const char* text : {"train.steps", "nccl.debug", "spec_digest"})
    EXPECT_THAT(table.out, Not(HasSubstr(text)));
  const json told = json::parse(run({"diff", "kaaaa@1", "kaaaa@2", "-o", "json"}).out);
  EXPECT_EQ(told["keys"], (json{{"train.learning_rate", {3e-3, 1e-3}}}));
  EXPECT_EQ(told["attempts"], (json{"kaaaa@1", "kaaaa@2"}));
  EXPECT_THAT(run({"diff", "@last@1", "kaaaa@3"}).err, HasSubstr("has no attempt 3"));
  const Outcome same = run({"diff", "kaaaa@1", "kaaaa@1"});
  EXPECT_THAT(same.err, HasSubstr("have the same keys"));
}

TEST_F(Views, SetChangesNameNoteAndTags) {
  daemon.on_loop([this] {
    daemon.service.runs.at("kbbbb").summary.tags = {"old", "kept"};
    return 0;
  });
  const Outcome done =
      run({"set", "kbbbb", "--name", "base", "--note", "", "--tag", "new", "--untag", "old"});
  EXPECT_EQ(done.exit, 0) << done.err;
  ASSERT_EQ(daemon.service.set_asked.size(), 1u);
  EXPECT_THAT(daemon.service.set_asked[0].overrides,
              ElementsAre("run.name=base", "run.note=", "run.tags=[\"kept\", \"new\"]"));
  EXPECT_EQ(run({"set", "kbbbb"}).exit, 2);
  EXPECT_EQ(run({"set", "kzzzz", "--name", "x"}).exit, 3);
}

} // namespace
} // namespace nsa::cli
