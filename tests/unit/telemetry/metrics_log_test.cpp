// The lines that rank 0 writes, as text and for TensorBoard.
#include "worker/telemetry/metrics_log.h"

#include "common/base/file.h"
#include "tests/support/temporary_folder.h"
#include "worker/telemetry/tensorboard_sink.h"

#include <gtest/gtest.h>

#include <limits>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

TEST(MetricsLog, LinesAreKeyedByAttemptAndStep) {
  std::string folder = (fs::temp_directory_path() / "nsa-metrics-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "metrics.jsonl";
  for (AttemptNumber attempt : {1, 2}) {
    MetricsLog log(path, attempt);
    wire::RankStep step;
    step.step = 5;
    step.loss = attempt == 2 ? std::numeric_limits<double>::quiet_NaN() : 2.5;
    log.step(step);
  }
  const std::string text = *read_file(path);
  const auto first = nlohmann::json::parse(text.substr(0, text.find('\n')));
  const auto second = nlohmann::json::parse(text.substr(text.find('\n') + 1));
  EXPECT_EQ(first["kind"], "step");
  EXPECT_EQ(first["loss"], 2.5);
  EXPECT_EQ(second["attempt"], 2);
  EXPECT_TRUE(second["loss"].is_null());
  fs::remove_all(folder);
}

TEST(MetricsLog, ATornLastLineStaysAlone) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.write("metrics.jsonl", "{\"step\": 1}\n{\"ste");
  MetricsLog(path, 2).step({});
  const std::string text = *read_file(path);
  EXPECT_TRUE(text.starts_with("{\"step\": 1}\n{\"ste\n{"));
  EXPECT_NO_THROW(nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2))));
}

TEST(MetricsLog, AFileThatCannotBeOpenedIsWrittenOnceItCan) {
  const test::TemporaryFolder folder;
  const fs::path path = folder.path() / "metrics.jsonl";
  fs::create_directory(path);
  MetricsLog log(path, 1);
  log.step({});
  fs::remove(path);
  log.flush();
  const std::string text = *read_file(path);
  EXPECT_TRUE(text.starts_with("{") && text.ends_with("}\n"));
}

TEST(TensorBoardSink, WritesWhatItIsGiven) {
  const test::TemporaryFolder folder;
  telemetry::TensorBoardWriter writer(folder.path(), 1, 0);
  const fs::path path = writer.path();
  const auto empty = fs::file_size(path);
  TensorBoardSink sink(std::move(writer));
  sink.step({});
  const auto with_step = fs::file_size(path);
  sink.evaluation({});
  const auto with_evaluation = fs::file_size(path);
  sink.non_finite({});
  EXPECT_LT(empty, with_step);
  EXPECT_LT(with_step, with_evaluation);
  EXPECT_LT(with_evaluation, fs::file_size(path));
}

} // namespace
} // namespace nsa::train
