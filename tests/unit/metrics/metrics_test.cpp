#include "common/base/file.h"
#include "common/base/text.h"
#include "common/progress/phase.h"
#include "daemon/metrics/catalogue.h"
#include "daemon/metrics/process.h"
#include "daemon/metrics/render.h"
#include "tests/support/former_names.h"
#include "tests/support/test_paths.h"

#include <cstdio>
#include <cstdlib>
#include <gtest/gtest.h>
#include <set>
#include <unistd.h>

namespace nsa::metrics {
namespace {

// A step with the value 2 for each metric.
wire::RankStep full_step() {
  wire::RankStep step;
  for (const auto& row : wire::kStepMetrics)
    std::visit([&](auto member) { step.*member = 2; }, row.at);
  return step;
}

// Sets the figures of layer 0, and adds keys of other forms.
void tell_layers(RunSample& run) {
  for (size_t i = 0; i < wire::kLayerMetrics.size(); ++i) {
    const wire::LayerMetric& metric = wire::kLayerMetrics[i].layers;
    run.layers[i] = {{metric.label.empty() ? "0" : "0/selected", 0.25},
                     {metric.label.empty() ? "0/selected" : "0", 9},
                     {"malformed", 9},
                     {"03", 9},
                     {"embedding", 0.5}};
  }
}

// A node with two runs. The first has every optional field, and the second has none.
Snapshot full_snapshot() {
  Snapshot snapshot;
  DaemonSample& daemon = snapshot.daemon;
  daemon.version = "0.1.0";
  daemon.commit = "abc";
  daemon.node = "node-a";
  daemon.runs = {{"running", 1}, {"queued", 1}};
  daemon.runs_finished = {{"completed", 4}};
  daemon.http["/v1/runs"].requests[200] = 7;
  daemon.http["/v1/runs"].seconds.observe(0.002);
  daemon.transaction_seconds.emplace("append", request_histogram());
  daemon.slots = {{"free", 1}, {"used", 1}};
  daemon.driver = "580.1";
  GpuSample& gpu = daemon.gpus.emplace_back();
  gpu.uuid = "GPU-1";
  gpu.model = "NVIDIA H200";
  gpu.memory_bytes = 1 << 30;
  gpu.used_bytes = 1 << 20;
  gpu.processes = 2;
  gpu.utilization_ratio = 0.97;
  gpu.temperature_celsius = 61;
  gpu.power_watts = 412.5;
  gpu.sm_clock_hertz = 1.98e9;
  gpu.ecc_errors = {{"corrected", 3}, {"uncorrected", 0}};
  gpu.xid_errors = {{79, 1}};
  daemon.gpus.emplace_back().index = 1; // it has only an index
  RunSample run;
  run.id = "kabcd";
  run.name = "quoted \" name\nof two lines \\";
  run.state = wire::RunState::kRunning;
  run.kernels = {{"selected", "fused hopper"}};
  run.submitted = {1'700'000'000'500'000'000};
  run.started = {1'700'000'001'000'000'000};
  run.eta = WallTime{1'700'000'100'000'000'000};
  run.planned_steps = 300;
  run.attempt = 2;
  run.restarts = {{"hang", 1}, {"a class of the future", 2}};
  run.hangs = 1;
  run.recovery_seconds.emplace("detect", recovery_histogram());
  run.phase_seconds = {{"train", 12.5}};
  run.step = 41;
  run.steps = 52;
  run.tokens = 4096;
  run.figures.add(full_step());
  run.figures["loss"] = 3.25;
  run.heldout_loss = 3.5;
  run.tokens_per_second = 1000;
  run.mfu_ratio = 0.4;
  run.flops = 1e15;
  run.checkpoint_last_success = WallTime{1'700'000'050'000'000'000};
  tell_layers(run);
  run.failing_gates = {{{"loss", "warn"}, 1}};
  run.rungs = 2;
  RankSample rank;
  rank.rank = 1;
  rank.node = "node-a";
  rank.gpu = "cpu";
  rank.up = true;
  rank.last_progress = {1'700'000'060'000'000'000};
  rank.step_seconds.observe(0.01); // a value on a bound belongs to the bucket below it
  rank.step_seconds.observe(100);
  rank.phase_seconds = {{"forward", 1.5}};
  rank.perf_score_ratio = 0.9;
  rank.figures.add(full_step());
  for (const double seconds : {3.0, 1.0, 2.0}) {
    rank.own_step_seconds = seconds;
    run.ranks.push_back(rank);
    ++rank.rank;
  }
  snapshot.runs.push_back(run);
  RunSample queued;
  queued.id = "kqqqq";
  queued.state = wire::RunState::kQueued;
  snapshot.runs.push_back(queued);
  snapshot.daemon.nodes = {{"bee", true, WallTime{2'000'000'000}, -0.25, 0.5},
                           {"cow", false, WallTime{3'000'000'000}, {}, {}}};
  snapshot.daemon.node_refusals = 7;
  return snapshot;
}

bool has_line(const std::string& text, const std::string& line) {
  for (const std::string& each : split(text, '\n'))
    if (each == line) return true;
  return false;
}

TEST(Metrics, RenderSaysWhatTheSnapshotHolds) {
  const std::string text = render(full_snapshot());
  for (const char* line :
       {"nsa_train_loss{run_id=\"kabcd\"} 3.25",
        "nsa_train_step{run_id=\"kabcd\"} 41",
        "nsa_run_kernel_info{run_id=\"kabcd\",part=\"selected\",kernel=\"fused hopper\"} 1",
        "nsa_run_state{run_id=\"kabcd\",state=\"running\"} 1",
        "nsa_run_state{run_id=\"kabcd\",state=\"queued\"} 0",
        "nsa_run_restarts_total{run_id=\"kabcd\",reason=\"hang\"} 1",
        "nsa_run_restarts_total{run_id=\"kabcd\",reason=\"network\"} 0",
        "nsa_run_restarts_total{run_id=\"kabcd\",reason=\"other\"} 2",
        "nsa_run_submit_timestamp_seconds{run_id=\"kabcd\"} 1700000000.5",
        "nsa_rank_step_duration_seconds_bucket{run_id=\"kabcd\",rank=\"1\",le=\"0.01\"} 1",
        "nsa_rank_step_duration_seconds_bucket{run_id=\"kabcd\",rank=\"1\",le=\"60\"} 1",
        "nsa_rank_step_duration_seconds_bucket{run_id=\"kabcd\",rank=\"1\",le=\"+Inf\"} 2",
        "nsa_rank_step_duration_seconds_count{run_id=\"kabcd\",rank=\"1\"} 2",
        "nsa_attention_gate_mean_ratio{run_id=\"kabcd\",layer=\"0\",branch=\"selected\"} 0.25",
        "nsa_train_layer_grad_norm{run_id=\"kabcd\",layer=\"0\"} 0.25",
        "nsa_train_layer_grad_norm{run_id=\"kabcd\",layer=\"embedding\"} 0.5",
        "nsa_attention_selected_distance_tokens{run_id=\"kabcd\",layer=\"0\"} 0.25",
        "nsa_run_phase_seconds_total{run_id=\"kabcd\",phase=\"train\"} 12.5",
        "nsa_run_step_skew_ratio{run_id=\"kabcd\"} 1.5",
        "nsa_train_mfu_ratio{run_id=\"kabcd\"} 0.4",
        "nsa_train_flops_total{run_id=\"kabcd\"} 1000000000000000",
        "nsa_gpu_memory_used_bytes{node=\"node-a\",gpu=\"0\"} 1048576",
        "nsa_gpu_utilization_ratio{node=\"node-a\",gpu=\"0\"} 0.97",
        "nsa_gpu_temperature_celsius{node=\"node-a\",gpu=\"0\"} 61",
        "nsa_gpu_power_watts{node=\"node-a\",gpu=\"0\"} 412.5",
        "nsa_gpu_ecc_errors_total{node=\"node-a\",gpu=\"0\",type=\"corrected\"} 3",
        "nsa_gpu_xid_errors_total{node=\"node-a\",gpu=\"0\",xid=\"79\"} 1",
        "nsa_gpu_quarantined{node=\"node-a\",gpu=\"0\"} 0",
        "nsa_node_up{node=\"bee\"} 1",
        "nsa_node_up{node=\"cow\"} 0",
        "nsa_node_clock_offset_seconds{node=\"bee\"} -0.25",
        "nsa_node_certificate_expiry_timestamp_seconds{node=\"cow\"} 3",
        "nsa_node_refusals_total 7",
        "nsad_http_requests_total{route=\"/v1/runs\",code=\"200\"} 7",
        "nsa_runs{state=\"running\"} 1",
        "nsa_runs_finished_total{result=\"failed\"} 0"})
    EXPECT_TRUE(has_line(text, line)) << line << "\nin\n" << text;
}

TEST(Metrics, WhatIsNotKnownHasNoSeries) {
  const std::string text = render(full_snapshot());
  EXPECT_EQ(text.find("nsa_train_loss{run_id=\"kqqqq\"}"), std::string::npos);
  EXPECT_EQ(text.find("nsa_run_start_timestamp_seconds{run_id=\"kqqqq\"}"), std::string::npos);
  EXPECT_EQ(text.find("malformed"), std::string::npos);
  EXPECT_EQ(text.find("} 9\n"), std::string::npos) << "keys of another form";
  EXPECT_EQ(text.find("nsa_node_clock_offset_seconds{node=\"cow\"}"), std::string::npos);
}

// docs/metrics.md promises at most 400 series per rank, including those of its run, whatever ranks
// send.
TEST(Metrics, ARankHasAtMost400Series) {
  Snapshot snapshot = full_snapshot();
  snapshot.runs.resize(1);
  RunSample& run = snapshot.runs.front();
  run.ranks.resize(1);
  for (const progress::PhaseInfo& info : progress::kPhases)
    run.ranks.front().phase_seconds[std::string(info.name)] = 1;
  for (int i = 0; i < 1000; ++i) {
    run.ranks.front().phase_seconds["phase-" + std::to_string(i)] = 1;
    run.restarts["class-" + std::to_string(i)] = 1;
    run.checkpoint_failures["reason-" + std::to_string(i)] = 1;
    for (auto& layers : run.layers) {
      layers["0/branch-" + std::to_string(i)] = 0.5;
      layers["group-" + std::to_string(i)] = 0.5;
      for (const char* key : {"", "/compressed", "/selected", "/sliding"})
        layers[std::to_string(i) + key] = 0.5;
    }
  }
  const auto series = [&] {
    int count = 0;
    for (const std::string& line : split(render(snapshot), '\n'))
      count += line.find("{run_id=\"kabcd\"") != std::string::npos;
    return count;
  };
  const int alone = series();
  EXPECT_LE(alone, 400);
  EXPECT_GT(alone, 300) << "32 layers have six series each";
  EXPECT_NE(render(snapshot).find("phase=\"other\"} 1000"), std::string::npos);
  run.ranks.resize(2, run.ranks.front());
  run.ranks.back().rank = 2;
  EXPECT_LE(series() - alone, 100) << "one rank more";
}

TEST(Metrics, TheProcessMetricsAreThisProcess) {
  const std::string text = render({});
  for (const Row& row : process_catalogue())
    EXPECT_NE(text.find("\n" + std::string(row.name) + " "), std::string::npos) << row.name;
  const size_t at = text.find("\nprocess_start_time_seconds ");
  ASSERT_NE(at, std::string::npos);
  const double started = std::stod(text.substr(at + 28));
  EXPECT_NEAR(started, WallTime::now().seconds(), 300);
}

TEST(Metrics, EveryRowReadsSomethingFromAFullSnapshot) {
  class Counter : public Samples {
  public:
    void value(Labels labels, double) override { add(labels); }
    void histogram(Labels labels, const Histogram&) override { add(labels); }
    void add(const Labels& labels) {
      ++count;
      std::vector<std::string> names;
      for (const auto& [name, value] : labels)
        names.push_back(name);
      seen.insert(join(names, ", "));
    }
    int count = 0;
    std::set<std::string> seen;
  };
  const Snapshot snapshot = full_snapshot();
  std::set<std::string_view> names;
  for (const Row& row : catalogue()) {
    Counter counter;
    row.read(snapshot, counter);
    EXPECT_GT(counter.count, 0) << row.name;
    EXPECT_EQ(counter.seen, std::set<std::string>{std::string(row.labels)}) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " twice";
    EXPECT_EQ(row.name.size() > 6 && row.name.substr(row.name.size() - 6) == "_total",
              row.type == Type::kCounter)
        << row.name;
    EXPECT_EQ(row.meaning.find('\n'), std::string::npos) << "HELP is one line: " << row.name;
  }
}

// Every name that a dashboard may use still exists.
TEST(Metrics, EveryFormerMetricIsThere) {
  std::set<std::string> names;
  for (const Row& row : catalogue())
    names.emplace(row.name);
  const auto former = test::former_names("metric");
  EXPECT_GT(former.size(), 60u);
  for (const std::string& name : former)
    EXPECT_EQ(names.count(name), 1u) << name;
}

TEST(Metrics, PromtoolFindsNothingToSay) {
  if (::access("/usr/bin/promtool", X_OK) != 0)
    GTEST_SKIP() << "promtool is not installed (Debian: prometheus)";
  char name[] = "/tmp/nsa-metrics-XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_GE(fd, 0);
  ASSERT_TRUE(write_file_atomic(name, render(full_snapshot())));
  FILE* pipe = ::popen(("promtool check metrics < " + std::string(name) + " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  char chunk[4096];
  for (size_t got; (got = ::fread(chunk, 1, sizeof chunk, pipe)) > 0;)
    said.append(chunk, got);
  EXPECT_EQ(::pclose(pipe), 0) << said;
  EXPECT_EQ(said, "");
  ::close(fd);
  ::unlink(name);
}

// NSA_UPDATE_DOCS=1 writes the page.
void expect_documented(const std::string& begin, const std::string& table) {
  const std::string path = test::source_folder() + "/docs/metrics.md", end = "<!-- end -->\n";
  auto page = read_file(path);
  ASSERT_TRUE(page) << page.error().what;
  const size_t from = page->find(begin);
  ASSERT_NE(from, std::string::npos);
  const size_t start = from + begin.size(), to = page->find(end, start);
  ASSERT_NE(to, std::string::npos);
  if (std::getenv("NSA_UPDATE_DOCS")) {
    page->replace(start, to - start, table);
    ASSERT_TRUE(write_file_atomic(path, *page));
  } else {
    EXPECT_EQ(page->substr(start, to - start), table) << "run NSA_UPDATE_DOCS=1 metrics_test";
  }
}

TEST(Metrics, TheDocumentedTablesAreTheseTables) {
  expect_documented("<!-- generated: steps -->\n", step_metrics_markdown());
  expect_documented("<!-- generated: layers -->\n", layer_metrics_markdown());
  expect_documented("<!-- generated: catalogue -->\n", catalogue_markdown());
}

// A step metric with a Prometheus name has a series after the first record: for the run, for each
// rank, or for both.
TEST(Metrics, StepMetricsReachPrometheusAsTheirRowsSay) {
  Snapshot snapshot;
  RunSample& run = snapshot.runs.emplace_back();
  run.id = "kabcd";
  RankSample& rank = run.ranks.emplace_back();
  const std::string before = render(snapshot);
  for (int records = 0; records < 2; ++records) {
    run.figures.add(full_step());
    rank.figures.add(full_step());
  }
  const std::string after = render(snapshot);
  for (const auto& row : wire::kStepMetrics) {
    const wire::Metric& metric = row.metric;
    const bool is_told =
        !(metric.prometheus.empty() && metric.prometheus_of_rank.empty() && metric.status.empty());
    EXPECT_EQ(is_told, metric.over != wire::OverRecords::kNothing) << row.name;
    EXPECT_TRUE(is_told || !metric.tensorboard.empty())
        << row.name << " is written, and nothing shows it";
    const bool sum = metric.over == wire::OverRecords::kSum;
    for (const auto& [name, labels] :
         {std::pair(metric.prometheus, "{run_id=\"kabcd\"} "),
          std::pair(metric.prometheus_of_rank, "{run_id=\"kabcd\",rank=\"0\"} ")}) {
      if (name.empty()) continue;
      const std::string series = std::string(name) + labels;
      EXPECT_EQ(has_line(before, series + "0"), sum) << row.name;
      EXPECT_TRUE(has_line(after, series + (sum ? "4" : "2"))) << row.name;
    }
  }
}

// A counter that is not stored would go back to 0 with each new nsad.
TEST(Metrics, CountersOfRunsOutliveNsad) {
  std::set<std::string_view> keys;
  for_each_figure<RunSample>([&](const auto& figure) {
    const Described& of = figure.of;
    EXPECT_TRUE(of.type == Type::kGauge || of.kept != nullptr) << of.name;
    if (of.kept != nullptr) {
      EXPECT_TRUE(keys.insert(of.kept).second) << of.kept << " twice";
    }
  });
  EXPECT_GE(keys.size(), 15u);
}

} // namespace
} // namespace nsa::metrics
