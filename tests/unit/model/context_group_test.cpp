// Ranks that share sequences, as threads. Together they compute the loss and the gradients of a
// rank with whole sequences.
#include "tests/unit/model/small_model.h"

#include "nsa_model/model/context_group.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>

namespace nsa::model {
namespace {

using at::Tensor;

constexpr int64_t kRanks = 2;

// Exchanges rows between threads.
class Between {
public:
  explicit Between(int64_t ranks = kRanks)
      : ranks_(ranks), sent_(size_t(ranks)), all_have_sent_(ranks), all_have_read_(ranks) {}
  SharedGroup group_of(int64_t rank) {
    auto group = std::make_shared<ContextGroup>();
    group->rank = rank;
    group->size = ranks_;
    group->all_to_all = [this, rank](const Tensor& out, const Tensor& in) {
      sent_[size_t(rank)] = out;
      return [this, rank, in] {
        all_have_sent_.arrive_and_wait();
        for (int64_t other = 0, row = 0; other < ranks_; ++other)
          if (other != rank) in[row++].copy_(sent_[size_t(other)][rank - (rank > other ? 1 : 0)]);
        all_have_read_.arrive_and_wait();
      };
    };
    return group;
  }

private:
  int64_t ranks_;
  std::vector<Tensor> sent_;
  std::barrier<> all_have_sent_, all_have_read_;
};

// Calls work(group, rank) for each rank, in a thread of its own.
template <typename Work> void on_ranks(int64_t count, Work work) {
  Between between(count);
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < count; ++rank)
    ranks.emplace_back([&, rank] { work(between.group_of(rank), rank); });
  for (std::thread& rank : ranks)
    rank.join();
}

struct Batch {
  Tensor tokens, targets;
  std::optional<Tensor> document_start;
};

struct Found {
  double loss = 0;
  std::vector<Tensor> gradients;
  Tensor token_losses;
};

Found train_once(const ModelConfig& config, const Batch& batch, SharedGroup group) {
  LanguageModel model(config, at::kCPU, at::kDouble, 7);
  sharpen(model, 4);
  model.share_context(std::move(group));
  const Tensor loss = model.loss(batch.tokens, batch.targets, batch.document_start);
  loss.backward();
  Found found;
  found.loss = loss.item<double>();
  for (const NamedParameter& p : model.named_parameters())
    found.gradients.push_back(p.tensor.grad().clone());
  found.token_losses = model.token_losses(batch.tokens, batch.targets, batch.document_start);
  return found;
}

std::vector<Found> train_shared(const ModelConfig& config, const Batch& batch) {
  std::vector<Found> found(static_cast<size_t>(kRanks));
  on_ranks(kRanks, [&](SharedGroup group, int64_t rank) {
    found[size_t(rank)] = train_once(config, batch, std::move(group));
  });
  return found;
}

void expect_same(const std::string& name, const ModelConfig& config, const Batch& batch) {
  const Found alone = train_once(config, batch, nullptr);
  const std::vector<Found> shared = train_shared(config, batch);
  EXPECT_NEAR((shared[0].loss + shared[1].loss) / 2, alone.loss, 1e-12) << name;
  EXPECT_LT(largest_difference(at::cat({shared[0].token_losses, shared[1].token_losses}, 1),
                               alone.token_losses),
            1e-12)
      << name;
  for (size_t i = 0; i < alone.gradients.size(); ++i) {
    const Tensor sum = (shared[0].gradients[i] + shared[1].gradients[i]) / double(kRanks);
    EXPECT_LT(largest_difference(sum, alone.gradients[i]),
              1e-11 * (1 + alone.gradients[i].abs().max().item<double>()))
        << name << ": gradient " << i;
    // If both ranks had the same gradient, nothing would have been exchanged for it.
    EXPECT_GT(largest_difference(shared[0].gradients[i], shared[1].gradients[i]), 0) << name;
  }
}

Batch random_batch() {
  at::manual_seed(3);
  return {at::randint(1, kVocabulary, {2, kSequence}, at::kLong), random_tokens(2, kSequence), {}};
}

// Each rank gets its heads of all tokens, and its tokens back. Some chunks consist of 8-byte words,
// some have an odd number of bytes, and some need no buffer.
TEST(ContextGroup, EveryShapeIsExchanged) {
  const std::vector<std::pair<std::vector<int64_t>, at::ScalarType>> shapes = {
      {{1, 12, 6, 64}, at::kBFloat16},
      {{2, 6, 12, 3}, at::kFloat},
      {{2, 6, 6, 1}, at::kBFloat16},
      {{1, 6, 6, 2, 2}, at::kFloat},
      {{1, 18, 6, 3}, at::kByte}};
  for (const int64_t n : {2, 3}) {
    for (size_t count : {size_t{1}, shapes.size()}) {
      for (size_t first = 0; first + count <= shapes.size(); ++first) {
        std::vector<Tensor> whole;
        for (size_t i = first; i < first + count; ++i)
          whole.push_back(at::randint(0, 200, shapes[i].first, at::kFloat).to(shapes[i].second));
        on_ranks(n, [&](const SharedGroup& group, int64_t rank) {
          std::vector<Tensor> parts;
          for (const Tensor& x : whole)
            parts.push_back(x.chunk(n, 1)[size_t(rank)]);
          const std::vector<Tensor> heads = to_whole_sequence(parts, group);
          for (size_t i = 0; i < whole.size(); ++i) {
            EXPECT_TRUE(at::equal(heads[i], whole[i].chunk(n, 2)[size_t(rank)])) << first + i;
            EXPECT_TRUE(at::equal(to_all_heads(heads[i], group), parts[i])) << first + i;
          }
        });
      }
    }
  }
}

TEST(ContextGroup, LossAndGradientsAreThoseOfWholeSequences) {
  for (const auto& [name, config] : small_configs())
    expect_same(name, config, random_batch());
}

// Some documents lie in both parts, and one begins where the second part begins.
TEST(ContextGroup, DocumentsCrossTheCut) {
  Batch batch = random_batch();
  for (const auto& [row, place] : {std::pair(0, 9), {0, 70}, {1, kSequence / 2 - 1}, {1, 60}})
    batch.tokens[row][place] = 0;
  batch.document_start = document_starts(batch.tokens, 0);
  for (const auto& [name, config] : small_configs())
    expect_same(name, config, batch);
}

TEST(ContextGroup, RecomputeExchangesAgain) {
  for (auto [name, config] : small_configs()) {
    config.activation_recompute = true;
    expect_same(name, config, random_batch());
  }
}

// One rank alone makes the samples of an evaluation, between steps.
TEST(ContextGroup, LogitsAreComputedAlone) {
  LanguageModel model(small_config(), at::kCPU, at::kDouble, 7),
      other(small_config(), at::kCPU, at::kDouble, 7);
  auto group = std::make_shared<ContextGroup>();
  group->size = kRanks;
  group->all_to_all = [](const Tensor&, const Tensor&) -> std::function<void()> {
    throw std::runtime_error("nobody answers");
  };
  model.share_context(group);
  const Batch batch = random_batch();
  EXPECT_THROW(model.token_losses(batch.tokens, batch.targets), std::runtime_error);
  EXPECT_EQ(largest_difference(model.logits(batch.tokens), other.logits(batch.tokens)), 0);
}

// An exception of the exchange in a backward pass reaches the training thread.
TEST(ContextGroup, AFailureInBackwardReachesTheCaller) {
  struct Lost : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  LanguageModel model(small_config(), at::kCPU, at::kDouble, 7);
  const auto works = std::make_shared<bool>(true);
  auto group = std::make_shared<ContextGroup>();
  group->size = kRanks;
  group->all_to_all = [works](const Tensor& out, const Tensor& in) {
    if (!*works) throw Lost("the peer is gone");
    return [out, in] { in.copy_(out); };
  };
  model.share_context(group);
  const Batch batch = random_batch();
  const Tensor loss = model.loss(batch.tokens, batch.targets);
  *works = false;
  EXPECT_THROW(loss.backward(), Lost);
}

TEST(ContextGroup, GroupsThatDoNotDivideAreRefused) {
  ModelConfig config = small_config();
  config.heads = config.kv_groups = 3;
  LanguageModel model(config, at::kCPU, at::kDouble, 7);
  auto group = std::make_shared<ContextGroup>();
  group->size = kRanks;
  EXPECT_THROW(model.share_context(group), c10::Error);
}

} // namespace
} // namespace nsa::model
