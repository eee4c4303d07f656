// Gates that stay uniform or collapse, and losses that jump.
#include "daemon/run_metrics/health_watch.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace nsa::control {
namespace {

wire::RankStep step_of(uint64_t number, double loss, std::map<std::string, double> gates = {}) {
  wire::RankStep step;
  step.step = number;
  step.loss = loss;
  step.gates = std::move(gates);
  return step;
}

// Returns the kinds of problems found in these losses, which begin with step 1.
std::vector<std::string> kinds(HealthWatch& watch, const std::vector<double>& losses) {
  std::vector<std::string> out;
  for (size_t i = 0; i < losses.size(); ++i)
    for (const auto& finding : watch.add(step_of(i + 1, losses[i])))
      out.push_back(text_of(finding.kind) + " " + std::to_string(i + 1));
  return out;
}

// Falls from 10.8 towards 3.2, with the noise of small batches.
std::vector<double> healthy(int steps, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.1);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i)
    losses.push_back(3.2 + 7.6 * std::exp(-i / 200.0) + noise(random));
  return losses;
}

TEST(HealthWatch, AHealthyCurveHasNoSpike) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    HealthWatch watch;
    EXPECT_EQ(kinds(watch, healthy(2000, seed)), std::vector<std::string>()) << seed;
  }
}

TEST(HealthWatch, ASpikeIsToldOnceWhileItLasts) {
  std::vector<double> losses = healthy(1000, 1);
  for (size_t i = 500; i < 505; ++i)
    losses[i] += 4;
  losses[900] += 4;
  HealthWatch watch;
  EXPECT_EQ(kinds(watch, losses), (std::vector<std::string>{"loss_spike 501", "loss_spike 901"}));
}

TEST(HealthWatch, ALossBelowTheEntropyOfTheDataIsToldOnceARun) {
  HealthWatch watch;
  watch.know_data(3.0);
  EXPECT_TRUE(kinds(watch, std::vector<double>(63, 2.9)).empty()) << "too few for a mean";
  EXPECT_EQ(kinds(watch, {3.05, 2.9}), std::vector<std::string>{"loss_below_entropy 1"});
  HealthWatch after = nlohmann::json(watch).get<HealthWatch>(); // nsad was started again
  after.begin_attempt(3);
  after.know_data(3.0);
  EXPECT_TRUE(kinds(after, std::vector<double>(100, 2.0)).empty());
}

TEST(HealthWatch, ALossAboveTheEntropyOrWithoutOneIsNoNews) {
  HealthWatch above, unknown;
  above.know_data(2.0);
  EXPECT_TRUE(kinds(above, std::vector<double>(100, 2.001)).empty());
  EXPECT_TRUE(kinds(unknown, std::vector<double>(100, 0.1)).empty());
}

TEST(HealthWatch, AConstantLossMayMoveALittle) {
  std::vector<double> losses(100, 2.0);
  losses[80] = 2.1; // the losses before it have no spread at all
  HealthWatch watch;
  EXPECT_TRUE(kinds(watch, losses).empty());
}

std::map<std::string, double> gates_of(const std::string& layer, double compressed,
                                       double selected) {
  return {{layer + "/compressed", compressed},
          {layer + "/selected", selected},
          {layer + "/sliding", 1 - compressed - selected}};
}

TEST(HealthWatch, GatesThatStayUniformAreToldOnceAfterAThousandSteps) {
  HealthWatch watch;
  watch.begin_attempt(3);
  std::map<std::string, double> equal = gates_of("0", 0.334, 0.333);
  equal.merge(gates_of("1", 0.335, 0.332));
  EXPECT_TRUE(watch.add(step_of(999, 3, equal)).empty()) << "new gates are nearly equal";
  const auto found = watch.add(step_of(1740, 3, equal));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, wire::EventKind::kGatesUniform);
  EXPECT_EQ(found[0].text, "gates stay uniform: entropy 1.0986 of at most 1.0986 in every layer at "
                           "step 1740, so no branch is chosen");
  EXPECT_TRUE(watch.add(step_of(1741, 3, equal)).empty());
  watch.begin_attempt(3);
  equal.merge(gates_of("2", 0.2, 0.3));
  EXPECT_TRUE(watch.add(step_of(2000, 3, equal)).empty()) << "one layer chooses";
  watch.begin_attempt(2);
  const std::map<std::string, double> two = {{"0/compressed", 0.5}, {"0/sliding", 0.5}};
  EXPECT_EQ(watch.add(step_of(2000, 3, two)).size(), 1u) << "of two branches";
  EXPECT_TRUE(HealthWatch().add(step_of(2000, 3)).empty()) << "no gates, no verdict";
}

TEST(HealthWatch, ACollapseHasToLast) {
  HealthWatch watch;
  watch.begin_attempt(3);
  const auto collapsed = gates_of("7", 0.97, 0.02), well = gates_of("7", 0.6, 0.2);
  for (uint64_t i = 1; i <= 4; ++i)
    EXPECT_TRUE(watch.add(step_of(i, 3, collapsed)).empty());
  EXPECT_TRUE(watch.add(step_of(5, 3, well)).empty());
  for (uint64_t i = 6; i <= 9; ++i)
    EXPECT_TRUE(watch.add(step_of(i, 3, collapsed)).empty());
  const auto found = watch.add(step_of(10, 3, collapsed));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text,
            "gates collapse: in layer 7 one branch has a mean gate of 0.970 at step 10");
}

TEST(HealthWatch, SigmoidGatesAreNotJudged) {
  const std::map<std::string, double> gates = {{"0/compressed", 0.99}, {"0/sliding", 0.98}};
  EXPECT_TRUE(layer_gates(step_of(1, 3, gates)).empty());
  const auto softmax = layer_gates(step_of(1, 3, gates_of("4", 0.5, 0.25)));
  ASSERT_EQ(softmax.size(), 1u);
  EXPECT_NEAR(softmax.at("4").entropy, 1.0397, 1e-4);
  EXPECT_EQ(softmax.at("4").largest, 0.5);
}

TEST(HealthWatch, OutlivesNsad) {
  std::vector<double> losses = healthy(300, 3);
  losses[200] += 5;
  HealthWatch stays, replaced;
  for (size_t i = 0; i < losses.size(); ++i) {
    const wire::RankStep step = step_of(i + 1, losses[i], gates_of("0", 0.97, 0.02));
    const auto one = stays.add(step), other = replaced.add(step);
    ASSERT_EQ(one.size(), other.size()) << i;
    replaced = nlohmann::json::parse(nlohmann::json(replaced).dump()).get<HealthWatch>();
  }
}

} // namespace
} // namespace nsa::control
