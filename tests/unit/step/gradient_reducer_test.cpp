// How gradients are summed over micro-steps, in which type, and when their buckets are sent.
#include "worker/step/gradient_reducer.h"

#include "tests/support/first_of_two.h"
#include "tests/support/three_parameters.h"
#include "worker/step/state_gatherer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace nsa::train {
namespace {

using namespace std::chrono_literals;
using test::FirstOfTwo;
using ::testing::HasSubstr;

TEST(GradientReducer, AccumulatesOverMicroStepsInFp32) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    World w(type);
    w.reducer.begin_step(1);
    at::Tensor expected = at::zeros({8, 3});
    for (int m = 0; m < 4; ++m) {
      const auto weights = some_weights(unsigned(m));
      w.reducer.begin_micro_step(m == 3);
      linear_loss(w.state, weights, 0.25).backward();
      // The backward pass returns the parameter's type. From there on the sum is FP32.
      expected += (weights[0] * 0.25).to(type).to(at::kFloat);
    }
    ASSERT_TRUE(w.reducer.finish_step());
    EXPECT_TRUE(at::allclose(w.state.slice(w.state.gradients, 0), expected, 1e-6, 1e-7));
    w.reducer.begin_step(2);
    EXPECT_EQ(w.state.gradients.abs().max().item<float>(), 0.0f);
  }
}

// The sums have the same bits whether they are deferred or added one by one. A parameter without a
// gradient keeps nothing of the step before.
TEST(GradientReducer, DeferringChangesNoSum) {
  for (const size_t bucket_bytes : {size_t(16), size_t(1) << 20}) {
    World plain(at::kBFloat16, {.find_unused = true, .defer = false}, nullptr, bucket_bytes);
    World deferring(at::kBFloat16, {.find_unused = true, .defer = true}, nullptr, bucket_bytes);
    // The number of parameters that get a gradient in each of three micro-steps.
    const std::vector<std::vector<size_t>> steps = {{3, 3, 3}, {2, 3, 1}, {2, 1, 2}, {1, 1, 1}};
    for (size_t step = 0; step < steps.size(); ++step) {
      for (World* w : {&plain, &deferring}) {
        w->reducer.begin_step(step + 1);
        EXPECT_EQ(w->state.sync_scalars().abs().max().item<float>(), 0.0f);
        for (size_t m = 0; m < 3; ++m) {
          w->reducer.begin_micro_step(m == 2);
          linear_loss(w->state, some_weights(unsigned(3 * step + m)), 0.25, steps[step][m])
              .backward();
          w->reducer.end_micro_step();
        }
        w->state.sync_scalars().fill_(1.0f);
        ASSERT_TRUE(w->reducer.finish_step());
      }
      EXPECT_TRUE(at::equal(plain.state.gradients, deferring.state.gradients)) << "step " << step;
    }
  }
}

TEST(GradientReducer, MissingGradientsAreAnErrorUnlessAllowed) {
  const auto weights = some_weights(1);
  World strict(at::kFloat);
  strict.reducer.begin_step(1);
  strict.reducer.begin_micro_step(true);
  linear_loss(strict.state, weights, 1.0, 2).backward();
  try {
    (void)strict.reducer.finish_step();
    FAIL() << "p2 has no gradient";
  } catch (const std::runtime_error& e) {
    EXPECT_THAT(e.what(), HasSubstr("p2"));
    EXPECT_THAT(e.what(), HasSubstr("find_unused"));
  }
  World lenient(at::kFloat, {.find_unused = true});
  lenient.reducer.begin_step(1);
  lenient.reducer.begin_micro_step(true);
  linear_loss(lenient.state, weights, 1.0, 2).backward();
  ASSERT_TRUE(lenient.reducer.finish_step());
  EXPECT_EQ(lenient.state.slice(lenient.state.gradients, 2).abs().max().item<float>(), 0.0f);
}

TEST(GradientReducer, StaticGraphHoldsTheFirstStepsSet) {
  const auto weights = some_weights(1);
  World w(at::kFloat, {.static_graph = true});
  for (uint64_t step = 1; step <= 2; ++step) {
    w.reducer.begin_step(step);
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, weights, 1.0, 2).backward();
    ASSERT_TRUE(w.reducer.finish_step());
  }
  w.reducer.begin_step(3);
  w.reducer.begin_micro_step(true);
  EXPECT_THROW(linear_loss(w.state, weights, 1.0, 3).backward(), std::runtime_error);
}

// A rank without its peer. It keeps the tensor with which each reduction was started.
class SeesStarts : public FirstOfTwo {
public:
  explicit SeesStarts(std::vector<at::Tensor>& starts) : starts_(starts) {}
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag tag) override {
    starts_.push_back(tensor.clone());
    return alone_->all_reduce_sum(tensor, tag);
  }

private:
  std::vector<at::Tensor>& starts_;
  std::unique_ptr<comm::Collectives> alone_ = comm::make_single_rank_collectives();
};

// With a static graph, a bucket does not wait for a parameter that never gets a gradient. The
// bucket must contain zeros there, and nothing of an earlier step or of uninitialised memory.
TEST(GradientReducer, StaticGraphReducesZerosWhereNoGradientComes) {
  for (const bool defer : {false, true}) {
    std::vector<at::Tensor> starts;
    World w(at::kBFloat16, {.static_graph = true, .defer = defer},
            std::make_unique<SeesStarts>(starts), 150); // the last two share the first bucket
    w.state.sync_scalars().zero_();
    for (uint64_t step = 1; step <= 3; ++step) {
      starts.clear();
      w.reducer.begin_step(step);
      if (defer) w.state.gradients.fill_(NAN); // sums are written before they are read
      w.state.sync_scalars().zero_();
      for (const bool last : {false, true}) {
        w.reducer.begin_micro_step(last);
        linear_loss(w.state, some_weights(unsigned(step)), 1.0, 2).backward();
        w.reducer.end_micro_step();
      }
      ASSERT_TRUE(w.reducer.finish_step());
      const BucketPlan::Slot& slot = w.state.plan().slots[2]; // it gets no gradient
      ASSERT_EQ(starts.size(), w.state.plan().buckets.size());
      const auto at = static_cast<int64_t>(slot.offset - w.state.plan().buckets[slot.bucket].begin);
      const at::Tensor sent = starts[slot.bucket].narrow(0, at, static_cast<int64_t>(slot.count));
      EXPECT_TRUE(sent.eq(0).all().item<bool>()) << "step " << step << " defer " << defer;
    }
  }
}

// A peer that answers when the test says so. It records what this rank did, in order.
class ScriptedPeer : public FirstOfTwo {
public:
  std::unique_ptr<comm::Pending> all_reduce_sum(const at::Tensor& tensor, comm::Tag tag) override {
    return start("", tensor, tag);
  }
  std::unique_ptr<comm::Pending> reduce_scatter_sum(const at::Tensor& tensor,
                                                    comm::Tag tag) override {
    return start("scatter ", tensor, tag);
  }
  std::unique_ptr<comm::Pending> all_gather(const at::Tensor& tensor, comm::Tag tag) override {
    return start("gather ", tensor, tag);
  }
  std::unique_ptr<comm::Pending> start(const std::string& what, const at::Tensor& tensor,
                                       comm::Tag tag) {
    order.push_back(what + "start " + std::to_string(tag.index));
    types.push_back(tensor.scalar_type());
    class Answer : public comm::Pending {
    public:
      Answer(ScriptedPeer& peer, std::string note) : peer_(peer), note_(std::move(note)) {}
      comm::Outcome wait() override {
        peer_.order.push_back(note_);
        std::this_thread::sleep_for(peer_.answer_takes);
        return {};
      }

    private:
      ScriptedPeer& peer_;
      std::string note_;
    };
    return std::make_unique<Answer>(*this, what + "wait " + std::to_string(tag.index));
  }

  std::vector<std::string> order;    // what was started and awaited
  std::vector<at::ScalarType> types; // the type of each collective's data
  Duration answer_takes{0};
};

double sum_of_pairs(const runtime::Stopwatch& waits) {
  double seconds = 0;
  EXPECT_EQ(waits.marks() % 2, 0u);
  for (size_t i = 0; i + 1 < waits.marks(); i += 2)
    seconds += waits.milliseconds(i, i + 1) / 1e3;
  return seconds;
}

// Buckets are sent during the backward pass, each once and in one order. None is sent between
// micro-steps. The last one contains the sync scalars and is sent when they are filled in.
TEST(GradientReducer, BucketsLeaveDuringTheLastBackwardPassOnly) {
  auto given = std::make_unique<ScriptedPeer>();
  ScriptedPeer& peer = *given;
  World w(at::kFloat, {}, std::move(given));
  ASSERT_EQ(w.state.plan().buckets.size(), 3u);
  w.reducer.begin_step(1);
  for (int m = 0; m < 3; ++m) {
    w.reducer.begin_micro_step(m == 2);
    linear_loss(w.state, some_weights(unsigned(m)), 1.0).backward();
    if (m < 2) {
      EXPECT_THAT(peer.order, ::testing::IsEmpty()) << "between micro-steps";
    }
  }
  EXPECT_THAT(peer.order, ::testing::ElementsAre("start 0", "start 1")) << "within backward()";
  ASSERT_TRUE(w.reducer.finish_step());
  EXPECT_THAT(peer.order, ::testing::ElementsAre("start 0", "start 1", "start 2", "wait 0",
                                                 "wait 1", "wait 2"));
}

TEST(GradientReducer, SendsGradientsInTheRequestedTypeAndSyncScalarsInFp32) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    auto given = std::make_unique<ScriptedPeer>();
    ScriptedPeer& peer = *given;
    World w(at::kFloat, {.compress = type}, std::move(given));
    w.reducer.begin_step(1);
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, some_weights(1), 1.0).backward();
    ASSERT_TRUE(w.reducer.finish_step());
    EXPECT_THAT(peer.types, ::testing::ElementsAre(type, type, type, at::kFloat));
  }
}

TEST(GradientReducer, ExposedCommunicationIsTheTimeOfTheWaits) {
  for (const bool compressed : {false, true}) {
    auto given = std::make_unique<ScriptedPeer>();
    ScriptedPeer& peer = *given;
    ReducerOptions options;
    if (compressed) options.compress = at::kBFloat16;
    World w(at::kFloat, options, std::move(given));
    for (const auto answer : {Duration(0), Duration(20ms)}) {
      peer.answer_takes = answer;
      w.reducer.begin_step(1);
      w.reducer.begin_micro_step(true);
      linear_loss(w.state, some_weights(1), 1.0).backward();
      const MonotonicTime begin = MonotonicTime::now();
      ASSERT_TRUE(w.reducer.finish_step());
      const double whole = to_seconds(MonotonicTime::now() - begin);
      const double waited = sum_of_pairs(w.reducer.take_waits());
      const int collectives = compressed ? 4 : 3; // the sync scalars are sent separately
      EXPECT_GE(waited, collectives * to_seconds(answer));
      EXPECT_LE(waited, whole);
    }
    EXPECT_EQ(w.reducer.take_waits().marks(), 0u) << "taken once";
  }
  World alone(at::kFloat);
  alone.reducer.begin_step(1);
  alone.reducer.begin_micro_step(true);
  linear_loss(alone.state, some_weights(1), 1.0).backward();
  ASSERT_TRUE(alone.reducer.finish_step());
  EXPECT_EQ(alone.reducer.take_waits().marks(), 0u) << "nobody to wait for";
}

// With shards there are three reduce-scatters, one all-reduce of the sync scalars, and then the
// weights. Every wait for them counts, and nothing else.
TEST(GradientReducer, WithShardsEveryWaitOfAStepIsExposedCommunication) {
  auto given = std::make_unique<ScriptedPeer>();
  ScriptedPeer& peer = *given;
  World w(at::kBFloat16, {}, std::move(given), 16, PrecisionMode::kMaster, {0, 2});
  StateGatherer gatherer(w.state, *w.collectives);
  peer.answer_takes = 20ms;
  w.reducer.begin_step(1);
  w.reducer.begin_micro_step(true);
  linear_loss(w.state, some_weights(1), 1.0).backward();
  ASSERT_TRUE(w.reducer.finish_step());
  EXPECT_THAT(peer.order,
              ::testing::ElementsAre("scatter start 0", "scatter start 1", "scatter start 2",
                                     "scatter wait 0", "scatter wait 1", "scatter wait 2",
                                     "start 0", "wait 0"));
  peer.order.clear();
  runtime::Stopwatch waits = w.reducer.take_waits();
  const double before = sum_of_pairs(waits);
  EXPECT_GE(before, 4 * 0.020);
  ASSERT_TRUE(gatherer.weights(1, waits));
  EXPECT_THAT(peer.order,
              ::testing::ElementsAre("gather start 0", "gather start 1", "gather start 2",
                                     "gather wait 0", "gather wait 1", "gather wait 2"));
  EXPECT_GE(sum_of_pairs(waits) - before, 3 * 0.020);
  EXPECT_EQ(waits.marks(), 6u) << "three pairs: the update between them is work";
  EXPECT_EQ(peer.types.back(), at::kBFloat16) << "weights travel as the model reads them";
}

} // namespace
} // namespace nsa::train
