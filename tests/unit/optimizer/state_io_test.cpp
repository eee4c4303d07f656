// Writes the training state into files and reads it again.
#include "worker/optimizer/state_io.h"

#include "tests/support/three_parameters.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

void train_steps(World& w, Optimizer& optimizer, int from, int to) {
  for (int step = from; step <= to; ++step) {
    w.reducer.begin_step(uint64_t(step));
    w.reducer.begin_micro_step(true);
    linear_loss(w.state, some_weights(unsigned(step)), 1.0).backward();
    ASSERT_TRUE(w.reducer.finish_step());
    optimizer.step(1e-2, at::ones({}));
  }
}

class StoredState : public testing::TestWithParam<PrecisionMode> {};
INSTANTIATE_TEST_SUITE_P(, StoredState,
                         testing::Values(PrecisionMode::kMaster, PrecisionMode::kStochasticRounding,
                                         PrecisionMode::kPure));

// Reads the state into one with another bucket size. Training continues with the same bits.
TEST_P(StoredState, RoundTripsBitForBit) {
  std::string folder = (fs::temp_directory_path() / "nsa-state-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  World w(at::kBFloat16, {}, nullptr, 16, GetParam());
  Optimizer optimizer(w.state, section());
  train_steps(w, optimizer, 1, 3);
  static const auto runtime = runtime::make_cpu_runtime({}); // a process can have only one
  SnapshotMaker maker(w.state, **runtime,
                      (*runtime)->allocate_host(SnapshotMaker::bytes_of(w.state)));
  for (const auto& file : maker.copy({.non_finite_streak = 4}))
    ASSERT_TRUE(safetensors::write(fs::path(folder) / file.name, file.tensors, file.metadata));
  World other(at::kBFloat16, {}, nullptr, 1 << 20, GetParam()); // one bucket instead of three
  auto counters = load_state(folder, other.state);
  ASSERT_TRUE(counters) << counters.error().what;
  EXPECT_EQ(counters->non_finite_streak, 4);
  EXPECT_EQ(other.state.updates.item<float>(), 3.0f);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(w.state.tensor(i), other.state.tensor(i)));
    for (auto member : {&FlatState::masters, &FlatState::first_moments, &FlatState::second_moments})
      EXPECT_TRUE(
          at::equal(w.state.slice(w.state.*member, i), other.state.slice(other.state.*member, i)));
  }
  Optimizer other_optimizer(other.state, section());
  train_steps(w, optimizer, 4, 6);
  train_steps(other, other_optimizer, 4, 6);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(
        at::equal(w.state.slice(w.state.masters, i), other.state.slice(other.state.masters, i)))
        << "resumed, it goes on alike";

  // Another mode reads the state with one rounding, to the nearest value.
  for (const auto mode : {PrecisionMode::kMaster, PrecisionMode::kStochasticRounding}) {
    World changed(at::kBFloat16, {}, nullptr, 16, mode);
    ASSERT_TRUE(load_state(folder, changed.state));
    World same(at::kBFloat16, {}, nullptr, 16, GetParam());
    ASSERT_TRUE(load_state(folder, same.state));
    EXPECT_TRUE(at::equal(changed.state.tensor(0), same.state.tensor(0)));
  }

  // A state without initial values takes everything from the checkpoint. If something is missing,
  // the load fails.
  std::vector<Parameter> undrawn = make_parameters(at::kBFloat16);
  for (Parameter& parameter : undrawn) {
    parameter.initial.reset();
    parameter.tensor.data().fill_(NAN);
  }
  FlatState loaded(undrawn, 16, 4, GetParam());
  EXPECT_EQ(loaded.masters.abs().max().item<float>(), 0.0f);
  ASSERT_TRUE(load_state(folder, loaded));
  World whole(at::kBFloat16, {}, nullptr, 16, GetParam());
  ASSERT_TRUE(load_state(folder, whole.state));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(loaded.tensor(i), whole.state.tensor(i)));
  EXPECT_TRUE(at::equal(loaded.masters, whole.state.masters));
  undrawn[1].name = "another";
  FlatState lacking(undrawn, 16, 4, GetParam());
  EXPECT_FALSE(load_state(folder, lacking)) << "a parameter that the checkpoint does not have";
  fs::remove(fs::path(folder) / "optimizer.safetensors");
  EXPECT_FALSE(load_state(folder, other.state));
  fs::remove_all(folder);
}

} // namespace
} // namespace nsa::train
