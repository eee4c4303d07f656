// Parses every file of configs/. Each is correct, or is refused for the reason given here.
#include "common/base/file.h"
#include "common/spec/node_spec.h"
#include "tests/support/test_paths.h"
#include "tests/unit/spec/spec_testing.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kConfigs = std::filesystem::path(test::source_folder()) / "configs";

// The files that are refused, with the reason.
const std::map<std::string, std::string> kRefused = {{"m7c_3090_smoke.toml", "FP16 gradients"}};

TEST(Configs, EveryRunFileIsRightOrRefusedForItsReason) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    const std::string name = entry.path().filename().string();
    if (name == "nsad.toml" || entry.is_directory()) continue;
    SCOPED_TRACE(name);
    ++files;
    const auto text = read_file(entry.path());
    ASSERT_TRUE(text);
    const Parsed parsed = parse_run_file(*text, name);
    const auto refused = kRefused.find(name);
    if (refused == kRefused.end())
      EXPECT_THAT(formatted(parsed.problems), IsEmpty());
    else
      EXPECT_THAT(formatted(parsed.problems), ElementsAre(HasSubstr(refused->second)));
  }
  EXPECT_GE(files, 16);
}

TEST(Configs, TheModelIsTheM7C) {
  const auto text = read_file(kConfigs / "m7c_125m.toml");
  ASSERT_TRUE(text);
  const RunSpec spec = parse_run_file(*text, "m7c_125m.toml").spec, defaults;
  EXPECT_EQ(spec.model.dimension, 768);
  EXPECT_EQ(spec.model.layers, 12);
  EXPECT_EQ(spec.model.vocabulary, 50304);
  EXPECT_EQ(spec.nsa.selected_blocks, defaults.nsa.selected_blocks);
  EXPECT_EQ(spec.nsa.window, 512);
}

TEST(Configs, NodeFileHoldsExactlyTheDefaults) {
  const auto text = read_file(kConfigs / "nsad.toml");
  ASSERT_TRUE(text);
  ParsedNode parsed = parse_node_file(*text, "nsad.toml");
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  NodeSpec defaults;
  const FieldTable given = node_fields(parsed.spec), wanted = node_fields(defaults);
  for (size_t i = 0; i < given.size(); ++i)
    EXPECT_EQ(get(given[i]), get(wanted[i])) << given[i].key;
}

TEST(NodeFile, GpusAreAWordOrAList) {
  const auto gpus = [](const std::string& value) {
    return parse_node_file("schema = 1\n[resources]\ngpus = " + value + "\n", "nsad.toml");
  };
  EXPECT_EQ(gpus("\"all\"").spec.resources.gpus, std::vector<std::string>{"all"});
  EXPECT_FALSE(gpus("\"none\"").spec.resources.has_gpus());
  const ParsedNode list = gpus("[\"0\", \"GPU-5fd4\"]");
  EXPECT_TRUE(list.problems.empty());
  EXPECT_EQ(list.spec.resources.gpus, (std::vector<std::string>{"0", "GPU-5fd4"}));
  EXPECT_TRUE(list.spec.resources.has_gpus());
  for (const char* wrong :
       {"[]", "[\"all\", \"0\"]", "[\"GPU-\"]", "[\"0\", \"0\"]", "[0]", "0", "\"\""})
    EXPECT_EQ(gpus(wrong).problems.size(), 1u) << wrong;
}

TEST(NodeFile, ReportsEveryMistakeWithItsPlace) {
  const ParsedNode parsed = parse_node_file(R"(schema = 1
[resources]
cpu_slot = 2
gpus = "some"
[metrics]
address = "0.0.0.0"
port = "9464"
[programs]
worker = "bin/nsa-worker"
[stoarge]
)",
                                            "nsad.toml");
  EXPECT_THAT(formatted(parsed.problems),
              ElementsAre(HasSubstr("nsad.toml:3:1: resources.cpu_slot: no key has this name\n"
                                    "  hint: did you mean resources.cpu_slots?"),
                          HasSubstr("nsad.toml:4:8: resources.gpus: \"some\" is not one of"),
                          HasSubstr("nsad.toml:6:11: metrics.address: must be a loopback address"),
                          HasSubstr("nsad.toml:7:8: metrics.port: must be an integer, not text"),
                          HasSubstr("nsad.toml:9:10: programs.worker: must be an absolute path"),
                          HasSubstr("stoarge: no table has this name\n  hint: did you mean "
                                    "[storage]?")));
}

} // namespace
} // namespace nsa::spec
