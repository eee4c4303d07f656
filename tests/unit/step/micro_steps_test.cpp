// Compares steps that are recorded and replayed with the same steps launched one by one. The device
// records operators (tests/support/operator_recorder.h). A replay does not repeat the host's
// decisions, so a result that depends on them would differ.
#include "nsa_model/ops/step_part.h"
#include "tests/support/first_of_two.h"
#include "tests/support/operator_recorder.h"
#include "tests/support/small_model.h"
#include "tests/support/small_training.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/wrapped_runtime.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;
using test::FirstOfTwo;
using test::run_small;
using test::small_batch;
using test::SmallNotes;
using test::SmallOutcome;
using test::SmallTraining;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

model::ModelConfig small_model() {
  model::ModelConfig c = test::small_model();
  c.gate_statistics = c.selection_statistics = true;
  return c;
}
SmallTraining training(int64_t accumulate, at::ScalarType type = at::kFloat) {
  SmallTraining t{.config = small_model(), .type = type, .accumulate = accumulate};
  t.options.defer = true; // as on a GPU
  return t;
}

class RecordingCpu : public test::WrappedRuntime {
public:
  using WrappedRuntime::WrappedRuntime;
  std::string why_no_graphs() const override { return ""; }
  Result<std::unique_ptr<runtime::Recorder>> make_recorder() override {
    ++recorders;
    return std::unique_ptr<runtime::Recorder>(std::make_unique<test::OperatorRecorder>());
  }
  int recorders = 0;
};
runtime::Runtime& cpu() { // the number of threads can be set once per process
  static const std::unique_ptr<runtime::Runtime> runtime =
      *runtime::make_cpu_runtime({.device = spec::Device::kCpu});
  return *runtime;
}

struct Both {
  SmallOutcome launched, replayed;
  int recorders = 0;
};
Both train_both(const SmallTraining& t) {
  const auto alone = comm::make_single_rank_collectives();
  RecordingCpu runtime(cpu());
  Both both{run_small(t, false, runtime, *alone), run_small(t, true, runtime, *alone), 0};
  both.recorders = runtime.recorders;
  EXPECT_NE(both.launched.losses.back(), both.launched.losses.front()) << "it changes";
  EXPECT_EQ(both.launched.graphs, 0u);
  return both;
}

TEST(MicroSteps, ReplayedStepsAreLaunchedOnesBitForBit) {
  std::vector<SmallTraining> ways;
  for (const int64_t accumulate : {1, 2, 3})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      ways.push_back(training(accumulate, type));
  ways.push_back(training(3, at::kBFloat16));
  ways.back().options.defer = false;
  ways.push_back(training(2, at::kBFloat16));
  ways.back().mode = PrecisionMode::kStochasticRounding;
  ways.push_back(training(2));
  ways.back().config.attention = model::Attention::kDense;
  ways.back().config.gate_statistics = ways.back().config.selection_statistics = false;
  ways.push_back(training(2));
  ways.back().config.activation_recompute = true;
  ways.push_back(training(1, at::kBFloat16));
  ways.back().config.fused_layers = true;
  ways.push_back(ways.back());
  ways.back().config.joined_embedding_gradient = true;
  for (size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE("way " + std::to_string(way));
    const Both both = train_both(ways[way]);
    expect_equal(both.launched, both.replayed);
    // There are graphs for the forward and backward passes of the first, the middle and the last
    // micro-step.
    EXPECT_EQ(both.replayed.graphs, size_t(2 * ways[way].accumulate));
    EXPECT_EQ(both.recorders, 1);
  }
}

// Figures of layers do not affect the training. With and without them every loss, norm and weight
// has the same bits.
TEST(MicroSteps, FiguresOfLayersChangeNoBit) {
  const auto alone = comm::make_single_rank_collectives();
  RecordingCpu runtime(cpu());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const bool recorded : {false, true}) {
      SmallTraining t = training(2, type);
      t.steps = 20;
      const SmallOutcome with = run_small(t, recorded, runtime, *alone);
      EXPECT_GT(with.layers.back().at("gradient_norms/1"), 0);
      EXPECT_GT(with.layers.back().at("gradient_norms/embedding"), 0);
      EXPECT_GT(with.layers.back().at("gradient_norms/final_norm"), 0);
      EXPECT_GE(with.layers.back().at("selected_distance/0"), 2 * 8);
      EXPECT_LE(with.layers.back().at("selected_overlap/1"), 1);
      t.layer_interval_steps = 0;
      t.config.gate_statistics = t.config.selection_statistics = false;
      SmallOutcome without = run_small(t, recorded, runtime, *alone);
      EXPECT_TRUE(without.layers.back().empty());
      without.layers = with.layers;
      expect_equal(with, without);
    }
}

// Between two measurements a launched pass measures nothing, but a replayed pass still does.
TEST(MicroSteps, FiguresOfLayersComeAtTheirInterval) {
  const auto alone = comm::make_single_rank_collectives();
  RecordingCpu runtime(cpu());
  SmallTraining t = training(2);
  t.steps = 9;
  t.layer_interval_steps = 4;
  const Both both{run_small(t, false, runtime, *alone), run_small(t, true, runtime, *alone), 0};
  expect_equal(both.launched, both.replayed);
  for (size_t step = 0; step < 9; ++step) {
    EXPECT_EQ(both.launched.layers[step].count("gradient_norms/0"), step % 4 == 0 ? 1u : 0u);
    EXPECT_EQ(both.launched.layers[step].count("selected_overlap/0"), step % 4 == 0 ? 1u : 0u);
    EXPECT_EQ(both.launched.layers[step].count("gates/0/selected"), 1u);
  }
}

// Names kernels as a GPU's recorder does. nsactl profile asks it for the kernels of each part of a
// step.
class NamingRecorder : public test::OperatorRecorder {
public:
  bool names_kernels() const override { return true; }
  std::vector<std::string> take_launched() override { return {"kernel"}; }
};
class NamingCpu : public RecordingCpu {
public:
  using RecordingCpu::RecordingCpu;
  Result<std::unique_ptr<runtime::Recorder>> make_recorder() override {
    return std::unique_ptr<runtime::Recorder>(std::make_unique<NamingRecorder>());
  }
};

TEST(MicroSteps, KernelsAreTiedToPartsWithoutAChangeOfTheSteps) {
  const auto alone = comm::make_single_rank_collectives();
  NamingCpu runtime(cpu());
  for (const int64_t accumulate : {1, 2}) {
    const SmallTraining t = training(accumulate, at::kBFloat16);
    expect_equal(run_small(t, false, runtime, *alone), run_small(t, true, runtime, *alone));
  }
  EXPECT_EQ(ops::part_listener(), nullptr);
}

TEST(MicroSteps, RanksReplayAroundTheirCollectives) {
  std::vector<SmallTraining> ways{training(1), training(3, at::kBFloat16),
                                  training(2, at::kBFloat16), training(1, at::kBFloat16)};
  ways[1].options.static_graph = true;
  ways[2].options.compress = at::kBFloat16;
  ways[3].shards = true;
  for (const SmallTraining& way : ways) {
    SCOPED_TRACE(testing::Message() << "accumulate " << way.accumulate);
    std::array<std::array<SmallOutcome, 2>, 2> outcomes; // launched and replayed, for each rank
    for (const bool recorded : {false, true}) {
      const test::TemporaryFolder place;
      std::vector<std::thread> ranks;
      for (Rank r = 0; r < 2; ++r)
        ranks.emplace_back([&, r] {
          at::set_num_threads(1);
          auto collectives = comm::make_cpu_collectives(r, 2, {place.path(), -1, 60s}, 60s);
          ASSERT_TRUE(collectives);
          RecordingCpu runtime(cpu());
          outcomes[recorded][size_t(r)] = run_small(way, recorded, runtime, **collectives);
          (*collectives)->shut_down();
        });
      for (std::thread& rank : ranks)
        rank.join();
    }
    for (size_t r = 0; r < 2; ++r) {
      expect_equal(outcomes[0][r], outcomes[1][r]);
      EXPECT_GT(outcomes[1][r].graphs, size_t(2 * way.accumulate)) << "cut at buckets";
    }
    EXPECT_TRUE(at::equal(outcomes[1][0].masters, outcomes[1][1].masters));
    for (const auto& [name, value] : outcomes[1][0].layers.back())
      if (name.starts_with("gradient_norms/")) {
        EXPECT_EQ(outcomes[1][1].layers.back().at(name), value) << name << ", of all ranks";
      }
  }
}

// A peer that answers at once, and records the requests.
class NotingPeer : public FirstOfTwo {
public:
  explicit NotingPeer(std::vector<std::string>& notes) : notes_(notes) {}
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor&, comm::Tag tag) override {
    notes_.push_back("step " + std::to_string(tag.step) + " bucket " + std::to_string(tag.index));
    class Answer : public comm::Pending {
      comm::Outcome wait() override { return {}; }
    };
    return std::make_unique<Answer>();
  }

private:
  std::vector<std::string>& notes_;
};

TEST(MicroSteps, TheHostDoesTheSameBetweenGraphsAsBetweenLaunches) {
  const SmallTraining way = training(2, at::kBFloat16);
  std::array<std::vector<std::string>, 2> notes; // launched, replayed
  std::array<SmallOutcome, 2> outcomes;
  for (const bool recorded : {false, true}) {
    NotingPeer peer(notes[recorded]);
    RecordingCpu runtime(cpu());
    SmallNotes hooks;
    hooks.at_backward = [&](int step, int64_t micro) {
      notes[recorded].push_back("backward " + std::to_string(step) + "." + std::to_string(micro));
    };
    outcomes[recorded] = run_small(way, recorded, runtime, peer, hooks);
  }
  expect_equal(outcomes[0], outcomes[1]);
  EXPECT_EQ(notes[1], notes[0]);
  ASSERT_GT(notes[0].size(), 5u);
  EXPECT_THAT(std::vector<std::string>(notes[0].begin(), notes[0].begin() + 4),
              ElementsAre("backward 1.0", "backward 1.1", "step 1 bucket 0", "step 1 bucket 1"));
}

TEST(MicroSteps, APoisonedStepIsLaunchedAndTheNextOneReplayed) {
  SmallTraining way = training(2);
  way.poisoned_step = 4;
  const Both both = train_both(way);
  EXPECT_TRUE(std::isnan(both.replayed.losses[3]));
  expect_equal(both.launched, both.replayed);
}

TEST(MicroSteps, AnotherShapeIsRecordedAnew) {
  SmallTraining way = training(1);
  way.wider_step = 4;
  const Both both = train_both(way);
  expect_equal(both.launched, both.replayed);
  EXPECT_EQ(both.recorders, 2);
}

// An operation that cannot be recorded causes an error of its own type. Training does not continue
// silently.
TEST(MicroSteps, AFailedRecordingSaysWhatCouldNotBeRecorded) {
  RecordingCpu runtime(cpu());
  at::Tensor weights = at::ones({4}).set_requires_grad(true);
  FlatState state({{"weights", weights, at::full({4}, 2.0), true}}, 1 << 20, 1);
  const auto alone = comm::make_single_rank_collectives();
  GradientReducer reducer(state, *alone, {});
  const auto loss = [&] {
    const at::Tensor value = weights.square().mean();
    return value.mul(value.item<double>() > 0 ? 1.0 : 2.0); // waits for the device
  };
  MicroSteps micro_steps({runtime, reducer, state.sync_scalars()[0],
                          [&](const auto&) { return loss(); },
                          StagedLoss{[](const auto&) {}, loss}},
                         1.0);
  const auto step = [&](int number) {
    reducer.begin_step(uint64_t(number));
    micro_steps.run(small_batch(training(1), runtime, number, 0, 0), {}, [] {});
    ASSERT_TRUE(reducer.finish_step());
  };
  step(1);
  step(2);
  try {
    step(3);
    FAIL() << "the host waited while recording";
  } catch (const RecordingError& e) {
    EXPECT_THAT(e.what(), HasSubstr("_local_scalar_dense"));
    EXPECT_THAT(e.what(), HasSubstr("CUDA graphs"));
  }
}

// A device whose recorder fails at one of its calls, or cannot be created.
struct RecorderFault {
  int begin = 0, end = 0; // number of the call that fails, from 1; 0: none
  bool make = false, out_of_memory = false;
  int begins = 0, ends = 0, abandoned = 0; // counted calls
};
class FaultyRecorder : public runtime::Recorder {
public:
  explicit FaultyRecorder(RecorderFault& fault) : fault_(fault) {}
  void begin() override {
    if (++fault_.begins == fault_.begin) fail("cudaStreamBeginCapture");
    inner_.begin();
  }
  std::unique_ptr<runtime::Graph> end() override {
    if (++fault_.ends == fault_.end) {
      inner_.abandon(); // as after a failed capture, which is gone
      fail("cudaGraphInstantiate");
    }
    return inner_.end();
  }
  void abandon() noexcept override {
    ++fault_.abandoned;
    inner_.abandon();
  }

private:
  void fail(const char* call) const {
    if (fault_.out_of_memory)
      throw c10::OutOfMemoryError({__func__, __FILE__, uint32_t(__LINE__)}, call);
    throw std::runtime_error(std::string(call) + " failed on purpose");
  }
  RecorderFault& fault_;
  test::OperatorRecorder inner_;
};
class FaultyDevice : public test::WrappedRuntime {
public:
  FaultyDevice(runtime::Runtime& inner, RecorderFault& fault)
      : WrappedRuntime(inner), fault_(fault) {}
  std::string why_no_graphs() const override { return ""; }
  Result<std::unique_ptr<runtime::Recorder>> make_recorder() override {
    if (fault_.make) return fail(ErrorCode::kExhausted, "no recorder on purpose");
    return std::unique_ptr<runtime::Recorder>(std::make_unique<FaultyRecorder>(fault_));
  }

private:
  RecorderFault& fault_;
};

// A recorder may fail anywhere, also in the backward pass between buckets. The step ends there with
// the reason, the unfinished recording is dropped, and no further bucket starts.
TEST(MicroSteps, ARecorderThatFailsAnywhereEndsTheStep) {
  const SmallTraining way = training(2, at::kBFloat16);
  const auto run = [&](RecorderFault& fault, std::vector<std::string>& notes) {
    NotingPeer peer(notes);
    FaultyDevice device(cpu(), fault);
    SmallNotes hooks;
    hooks.step_begins = [&](int step) { notes.push_back("begin " + std::to_string(step)); };
    return run_small(way, true, device, peer, hooks);
  };
  RecorderFault none;
  std::vector<std::string> all_notes;
  const SmallOutcome whole = run(none, all_notes);
  ASSERT_GT(none.begins, 5) << "two micro-steps, the second one cut at buckets";
  ASSERT_EQ(none.begins, none.ends);

  std::vector<RecorderFault> faults{{.make = true}};
  for (int call = 1; call <= none.begins; ++call) {
    faults.push_back({.begin = call});
    faults.push_back({.end = call});
  }
  for (RecorderFault& fault : faults) {
    SCOPED_TRACE(testing::Message() << "begin " << fault.begin << ", end " << fault.end);
    std::vector<std::string> notes;
    try {
      run(fault, notes);
      ADD_FAILURE() << "it went on";
    } catch (const RecordingError& e) {
      EXPECT_THAT(e.what(), HasSubstr("on purpose"));
    }
    EXPECT_EQ(fault.abandoned, fault.make ? 0 : 1);
    EXPECT_LE(fault.begins, std::max(fault.begin, fault.end)) << "nothing is recorded behind it";
    ASSERT_LT(notes.size(), all_notes.size());
    EXPECT_TRUE(std::equal(notes.begin(), notes.end(), all_notes.begin()));
    EXPECT_EQ(std::count(notes.begin(), notes.end(), "begin 4"), 0);
  }
  // The failures leave nothing behind in the process.
  RecorderFault again;
  std::vector<std::string> notes;
  expect_equal(whole, run(again, notes));
  EXPECT_EQ(notes, all_notes);
}

// Launched steps had enough memory. Only the first line of the error is for people.
TEST(MicroSteps, OutOfMemoryWhileRecordingIsAFailedRecording) {
  RecorderFault fault{.begin = 2, .out_of_memory = true};
  FaultyDevice device(cpu(), fault);
  const auto alone = comm::make_single_rank_collectives();
  try {
    run_small(training(1), true, device, *alone);
    FAIL() << "it went on";
  } catch (const RecordingError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("cudaStreamBeginCapture"), Not(HasSubstr("\n"))));
  }
  EXPECT_EQ(fault.abandoned, 1);
}

// Tests the tape alone, without a device.
class NotedGraph : public runtime::Graph {
public:
  NotedGraph(std::vector<std::string>& notes, int number) : notes_(notes), number_(number) {}
  void replay() override { notes_.push_back("graph " + std::to_string(number_)); }

private:
  std::vector<std::string>& notes_;
  int number_;
};
class NotedRecorder : public runtime::Recorder {
public:
  explicit NotedRecorder(std::vector<std::string>& notes) : notes_(notes) {}
  void begin() override { notes_.push_back("begin"); }
  std::unique_ptr<runtime::Graph> end() override {
    return std::make_unique<NotedGraph>(notes_, ++graphs_);
  }
  void abandon() noexcept override { notes_.push_back("abandon"); }

private:
  std::vector<std::string>& notes_;
  int graphs_ = 0;
};

TEST(Tape, PlaysGraphsAndActsInTheirOrder) {
  std::vector<std::string> notes;
  NotedRecorder recorder(notes);
  Tape tape;
  EXPECT_FALSE(tape.recorded());
  tape.record(recorder, [&] {
    tape.cut([&] { notes.push_back("act a"); });
    tape.cut([&] { notes.push_back("act b"); });
  });
  EXPECT_THAT(notes, ElementsAre("begin", "graph 1", "act a", "begin", "graph 2", "act b", "begin",
                                 "graph 3"));
  EXPECT_EQ(tape.graphs(), 3u);
  for (int play = 0; play < 2; ++play) {
    notes.clear();
    tape.play();
    EXPECT_THAT(notes, ElementsAre("graph 1", "act a", "graph 2", "act b", "graph 3"));
  }
}

TEST(Tape, AnExceptionDropsTheRecording) {
  std::vector<std::string> notes;
  NotedRecorder recorder(notes);
  Tape tape;
  EXPECT_THROW(tape.record(recorder,
                           [&] {
                             tape.cut([] {});
                             throw std::runtime_error("no");
                           }),
               std::runtime_error);
  EXPECT_EQ(notes.back(), "abandon");
  EXPECT_FALSE(tape.recorded());
}

} // namespace
} // namespace nsa::train
