// Tests the claims about the whole model (docs/design/model.md) for all the ways in which a GPU
// computes it: regrouped ATen or fused kernels, composed or fused layers, NSA and its dense twin,
// with the M7C's head shape. The dense twin's ATen kernels are those of cuDNN or others of
// LibTorch.
//
// The judge is the same model with the same weights in FP64. The measure is the same model in BF16
// on the CPU, where attention is dense products with a mask. The error of a way may be 1.5 times
// that of the measure. Small models test the CPU's ways too, so these tests run on every machine.
#include "tests/gpu/model/whole_model.h"

#include "nsa_model/model/decode.h"
#include "nsa_model/ops/attention.h"
#include "tests/support/selection_loops.h"

namespace nsa::model {
namespace {

// Tests that apply only to some of the ways.
class Fp64 : public WholeModel {};
class Branches : public WholeModel {};
class AveragedKeys : public WholeModel {};

TEST_P(Fp64, IsTheSameOnGpuAndCpu) {
  const Scale s = scale();
  const std::vector<Batch> batches{random_batch(s.config, 1, s.selecting / 2 + 100)};
  LanguageModel here = build(s.config, at::kCPU, at::kDouble), there = exact(s.config);
  const Gradients wanted = gradients(here, at::kCPU, batches),
                  found = gradients(there, device(), batches);
  for (const auto& [name, value] : wanted)
    EXPECT_LE(relative(found.at(name), value), 1e-9) << name;
  EXPECT_LE(relative(logits(there, device(), batches[0]), logits(here, at::kCPU, batches[0])),
            1e-9);
}

TEST_P(WholeModel, LengthsAtTheEdges) {
  const Scale s = scale();
  std::vector<Batch> few, many;
  for (const int64_t length : s.edges)
    (length <= s.rounding / 2 ? few : many).push_back(random_batch(s.config, 1, length));
  expect_logits_as_good("shortest texts", s.config, few);
  expect_logits_as_good("texts about n * l'", s.config, many);
}

TEST_P(WholeModel, GradientsOfEveryParameter) {
  const Scale s = scale();
  expect_gradients_as_good("all blocks selected", s.config, several(s, s.batches, s.rounding));
  expect_gradients_as_good("some blocks selected", s.config,
                           several(s, s.batches / 3, s.selecting));
}

TEST_P(Branches, SwitchedOff) {
  const Scale s = scale();
  const std::vector<Batch> batches = several(s, s.batches, s.rounding * 2 / 3);
  struct Ablation {
    const char* what;
    bool compressed, selected, sliding;
  };
  for (const Ablation& on : {Ablation{"off: selected", true, false, true},
                             {"off: sliding", true, true, false},
                             {"off: selected sliding", true, false, false},
                             {"off: compressed selected", false, false, true}}) {
    ModelConfig config = s.config;
    config.nsa.compressed = on.compressed;
    config.nsa.selected = on.selected;
    config.nsa.sliding = on.sliding;
    expect_gradients_as_good(on.what, config, batches);
  }
}

// With only the sliding branch and a window that contains the text, NSA equals the dense twin.
TEST_P(Branches, TheWindowOverEverythingIsTheDenseTwin) {
  Scale s = scale();
  s.config.nsa.compressed = s.config.nsa.selected = false;
  s.config.nsa.gate = Gate::kGroupSoftmax; // a softmax over one branch, which is 1
  const Batch batch = random_batch(s.config, 2, s.config.nsa.window);
  ModelConfig twin = s.config;
  twin.attention = Attention::kDense;
  const auto with_weights_of_the_window = [&](at::ScalarType type) {
    LanguageModel m = build(twin, at::kCPU, type);
    LanguageModel sliding = build(s.config, at::kCPU, type);
    for (size_t i = 0; i < m.named_parameters().size(); ++i)
      m.named_parameters()[i].tensor.detach().copy_(sliding.named_parameters()[i].tensor.detach());
    return logits(m, at::kCPU, batch);
  };
  LanguageModel ours = model(s.config);
  Judge("window over everything")("logits", logits(ours, device(), batch),
                                  with_weights_of_the_window(at::kBFloat16),
                                  with_weights_of_the_window(at::kDouble));
}

// Compares the blocks that the kernels select with those that ATen selects for the same queries and
// keys, with and without documents. Rounding may choose another block if scores are nearly equal.
TEST_P(Branches, FiguresOfSelectedBlocksAreThoseOfTheLayers) {
  const Scale s = scale();
  ModelConfig config = s.config;
  config.selection_statistics = true;
  LanguageModel ours = model(config);
  ours.watch_selection(true);
  const NsaConfig& nsa = config.nsa;
  const ops::Sizes sizes{nsa.compression_block, nsa.compression_stride, nsa.selection_block,
                         nsa.selected_blocks, nsa.window};
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "documents" : "whole rows");
    Batch batch = random_batch(config, 2, s.selecting);
    const int64_t begin = s.selecting / 5;
    std::vector<ops::SelectedRows> documents{{0, s.selecting}, {s.selecting, s.selecting}};
    if (cut) {
      cut_into_documents(batch, {begin});
      documents = {{0, begin},
                   {begin, s.selecting - begin},
                   {s.selecting, begin},
                   {s.selecting + begin, s.selecting - begin}};
    }
    ours.loss(batch.tokens.to(device()), batch.targets.to(device()), batch.starts).backward();
    const Tensor figures = home(ours.take_selection_figures());
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const ops::AttentionInputs inputs =
          ours.attention_inputs(batch.tokens.to(device()), batch.starts, layer);
      const test::SelectionLoops exact(*inputs.indices, documents, sizes);
      const double distance = figures[layer][0].item<double>();
      const double overlap = figures[layer][1].item<double>();
      std::printf("  layer %d: distance %.2f tokens (ATen's blocks %.2f), overlap %.4f (%.4f)\n",
                  int(layer), distance, exact.distance(), overlap, exact.overlap());
      EXPECT_NEAR(distance, exact.distance(), 0.05 * exact.distance());
      EXPECT_NEAR(overlap, exact.overlap(), 0.05);
    }
  }
}

TEST_P(WholeModel, LossIsTheMeanOfTokenLosses) {
  const Scale s = scale();
  LanguageModel ours = model(s.config);
  const Batch batch = random_batch(s.config, 2, s.selecting / 2 + 100);
  const Tensor tokens = batch.tokens.to(device()), targets = batch.targets.to(device());
  const c10::NoGradGuard no_grad;
  const double loss = ours.loss(tokens, targets).item<double>();
  EXPECT_NEAR(ours.token_losses(tokens, targets).mean(at::kDouble).item<double>(), loss,
              1e-5 * loss);
}

TEST_P(WholeModel, FutureTokensChangeNoPastBit) {
  const Scale s = scale();
  LanguageModel ours = model(s.config);
  const Batch batch = random_batch(s.config, 1, s.selecting);
  const Tensor before = logits(ours, device(), batch);
  for (const int64_t cut :
       {int64_t(1), s.selecting / 3, s.selecting * 2 / 3, s.selecting * 19 / 20, s.selecting - 1}) {
    Batch changed = batch;
    changed.tokens = batch.tokens.clone();
    changed.tokens.narrow(1, cut, s.selecting - cut)
        .copy_(random_batch(s.config, 1, s.selecting - cut).tokens);
    const Tensor after = logits(ours, device(), changed);
    EXPECT_TRUE(at::equal(after.narrow(1, 0, cut), before.narrow(1, 0, cut))) << "cut " << cut;
    EXPECT_FALSE(at::equal(after.narrow(1, cut, s.selecting - cut),
                           before.narrow(1, cut, s.selecting - cut)))
        << "cut " << cut;
  }
}

TEST_P(WholeModel, DecodeEqualsPrefill) {
  const Scale s = scale();
  // Decodes one by one past the length at which blocks are selected, and then in pieces.
  const int64_t border = s.config.nsa.selected_blocks * s.config.nsa.selection_block;
  const int64_t length = border + std::max<int64_t>(20, border / 10);
  const Batch batch = random_batch(s.config, 2, length);
  std::vector<int64_t> pieces{1, 2, border - 6, 1, 1, 1, 1, 1, 1, 1, 1};
  for (int64_t fed = border + 5; fed < length;)
    fed += pieces.emplace_back(std::min<int64_t>(length - fed, 7));
  const auto decoded = [&](LanguageModel& m, at::Device on) {
    DecodeState state = m.start_decoding(2, length);
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (const int64_t piece : pieces) {
      parts.push_back(home(m.decode(state, batch.tokens.narrow(1, begin, piece).to(on))));
      begin += piece;
    }
    EXPECT_EQ(begin, length);
    return at::cat(parts, 1);
  };
  LanguageModel wide = exact(s.config);
  const Tensor wanted = logits(wide, device(), batch);
  EXPECT_LE(relative(decoded(wide, device()), wanted), 1e-9);
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& measure =
      once<Tensor>(key("prefill plain"), [&] { return logits(simple, at::kCPU, batch); });
  Judge("decoding step by step")("logits", decoded(ours, device()), measure, wanted);
  Judge("prefill of the same")("logits", logits(ours, device(), batch), measure, wanted);
}

// Decodes a prompt as one piece, and then token by token. Only the last logits are requested.
TEST_P(WholeModel, DecodesBehindAPromptOfOnePiece) {
  const Scale s = scale();
  const int64_t length = s.selecting, prompt = length - 20;
  const Batch batch = random_batch(s.config, 2, length);
  const auto decoded = [&](LanguageModel& m, at::Device on) {
    DecodeState state = m.start_decoding(2, length);
    std::vector<Tensor> parts{home(
        m.decode(state, batch.tokens.narrow(1, 0, prompt).to(on), LanguageModel::Logits::kLast))};
    for (int64_t at = prompt; at < length; ++at)
      parts.push_back(home(m.decode(state, batch.tokens.narrow(1, at, 1).to(on))));
    return at::cat(parts, 1);
  };
  LanguageModel wide = exact(s.config);
  const Tensor wanted = logits(wide, device(), batch).narrow(1, prompt - 1, length - prompt + 1);
  EXPECT_LE(relative(decoded(wide, device()), wanted), 1e-9);
  LanguageModel ours = model(s.config), simple = plain(s.config);
  EXPECT_EQ(ours.prefills_at_once(2, prompt),
            way().gpu && (way().kernels == Kernels::kFused || way().kind == Kind::kDense));
  const Tensor measure = once<Tensor>(key("behind a prompt plain"), [&] {
                           return logits(simple, at::kCPU, batch);
                         }).narrow(1, prompt - 1, length - prompt + 1);
  Judge("decoding behind a prompt")("logits", decoded(ours, device()), measure, wanted);
}

// Compares packed documents with each document alone in FP64.
TEST_P(WholeModel, DocumentsAreAsAlone) {
  const Scale s = scale();
  const int64_t length = s.selecting;
  const std::vector<int64_t> begins{length / 3, length / 3 + 1, length / 3 + 20};
  Batch packed = random_batch(s.config, s.batches / 3, length);
  cut_into_documents(packed, begins);
  std::vector<std::pair<int64_t, int64_t>> documents; // (begin, length)
  for (size_t i = 0; i <= begins.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : begins[i - 1], end = i == begins.size() ? length : begins[i];
    documents.emplace_back(begin, end - begin);
  }
  LanguageModel wide = exact(s.config);
  std::vector<Tensor> alone;
  Gradients wanted;
  for (const auto& [begin, count] : documents) {
    const Batch one{packed.tokens.narrow(1, begin, count).contiguous(),
                    packed.targets.narrow(1, begin, count).contiguous(),
                    {}};
    alone.push_back(logits(wide, device(), one));
    for (const auto& [name, gradient] : gradients(wide, device(), {one})) {
      // The document's part of the mean loss.
      const Tensor part = gradient * (double(count) / double(length));
      wanted[name] = wanted.contains(name) ? wanted[name] + part : part;
    }
  }
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& simple_logits =
      once<Tensor>(key("documents plain"), [&] { return logits(simple, at::kCPU, packed); });
  const Gradients& simple_gradients = once<Gradients>(
      key("documents plain"), [&] { return gradients(simple, at::kCPU, {packed}); });
  Judge judge("documents packed");
  judge("logits", logits(ours, device(), packed), simple_logits, at::cat(alone, 1));
  judge(gradients(ours, device(), {packed}), simple_gradients, wanted);
}

TEST_P(WholeModel, RecomputeAndRepetitionChangeNoBit) {
  at::globalContext().setDeterministicAlgorithms(true, false); // as train.deterministic does
  Scale s = scale();
  Batch packed = random_batch(s.config, 2, s.selecting);
  const Batch whole = packed;
  cut_into_documents(packed, {s.selecting / 3, s.selecting / 3 + 5});
  LanguageModel kept = model(s.config);
  s.config.activation_recompute = true;
  LanguageModel recomputed = model(s.config);
  s.config.recompute_attention = false;
  LanguageModel with_attention = model(s.config);
  for (const Batch& batch : {whole, packed}) {
    const Gradients first = gradients(kept, device(), {batch});
    expect_same_bits(first, gradients(recomputed, device(), {batch}), "recompute");
    expect_same_bits(first, gradients(with_attention, device(), {batch}), "attention is kept");
    expect_same_bits(first, gradients(kept, device(), {batch}), "again");
  }
}

TEST_P(WholeModel, OnlyRelativePositionsCount) {
  const Scale s = scale();
  const Batch batch = random_batch(s.config, 1, s.selecting);
  LanguageModel wide = exact(s.config);
  const Tensor wanted = logits(wide, device(), batch);
  EXPECT_LE(relative(logits(wide, device(), batch, 1000), wanted), 1e-8);
  Batch reversed = batch; // shows that the model does depend on the order
  reversed.tokens = batch.tokens.flip(1);
  EXPECT_GT(relative(logits(wide, device(), reversed).select(1, s.selecting - 1),
                     wanted.select(1, s.selecting - 1)),
            1e-2);
  LanguageModel ours = model(s.config), simple = plain(s.config);
  const Tensor& measure =
      once<Tensor>(key("positions plain"), [&] { return logits(simple, at::kCPU, batch); });
  Judge("1,000 positions later")("logits", logits(ours, device(), batch, 1000), measure, wanted);
}

// If compressed keys are zero, all blocks have the same score, and the lowest blocks are selected.
TEST_P(AveragedKeys, TiesGoToTheLowestBlocks) {
  const Scale s = scale();
  expect_logits_as_good("ties", s.config, {random_batch(s.config, 1, s.selecting)},
                        [](LanguageModel& m) {
                          for (const NamedParameter& p : m.named_parameters())
                            if (p.name.ends_with("w_k_compressed.weight"))
                              p.tensor.detach().zero_();
                        });
}

// AdamW without weight decay on flat buffers, with FP32 masters.
class Adam {
public:
  Adam(LanguageModel& model, double rate) : rate_(rate) {
    int64_t count = 0;
    for (const NamedParameter& p : model.named_parameters())
      count += p.tensor.numel();
    const auto& any = model.named_parameters()[0].tensor;
    weights_ = at::empty({count}, any.options());
    grads_ = at::zeros_like(weights_);
    int64_t begin = 0;
    for (const NamedParameter& p : model.named_parameters()) {
      const auto view = [&](const Tensor& flat) {
        return flat.narrow(0, begin, p.tensor.numel()).view(p.tensor.sizes());
      };
      view(weights_).copy_(p.tensor.detach());
      p.tensor.set_data(view(weights_));
      p.tensor.mutable_grad() = view(grads_);
      begin += p.tensor.numel();
    }
    masters_ = weights_.to(at::kFloat);
    first_ = at::zeros_like(masters_);
    second_ = at::zeros_like(masters_);
  }
  void step() {
    ++count_;
    const Tensor grad = grads_.to(at::kFloat);
    first_.mul_(0.9).add_(grad, 0.1);
    second_.mul_(0.95).addcmul_(grad, grad, 0.05);
    const Tensor root = (second_ / (1 - std::pow(0.95, count_))).sqrt_().add_(1e-8);
    masters_.addcdiv_(first_, root, -rate_ / (1 - std::pow(0.9, count_)));
    weights_.copy_(masters_);
    grads_.zero_();
  }

private:
  double rate_;
  int count_ = 0;
  Tensor weights_, grads_, masters_, first_, second_;
};

// New random tokens cannot be predicted, so a model that does better must see its targets. A second
// training shows that the model would learn this: its targets are its own tokens.
TEST_P(WholeModel, NeverBeatsRandomTokens) {
  const Scale s = scale();
  const double uniform = std::log(double(s.config.vocabulary));
  struct Losses {
    double first = 0, late = 0; // late: the mean of the second half
  };
  const auto train = [&](bool visible, int steps) {
    LanguageModel m(config_for(way(), s.config), device(), at::kBFloat16, kSeed);
    Adam adam(m, way().gpu ? 1e-3 : 5e-3);
    Losses losses;
    for (int step = 0; step < steps; ++step) {
      const Batch batch = random_batch(s.config, way().gpu ? 1 : 4, s.rounding + s.rounding / 5);
      const Tensor loss =
          m.loss(batch.tokens.to(device()), (visible ? batch.tokens : batch.targets).to(device()));
      loss.backward();
      c10::NoGradGuard no_grad;
      adam.step();
      if (step == 0) losses.first = loss.item<double>();
      if (2 * step >= steps)
        losses.late += loss.item<double>() / static_cast<double>(steps - steps / 2);
    }
    return losses;
  };
  const Losses seen = train(true, way().gpu ? 20 : 40), unseen = train(false, way().gpu ? 40 : 60);
  std::printf("  loss less ln(vocabulary): own token %+.4f, then %+.4f; next token %+.4f, %+.4f\n",
              seen.first - uniform, seen.late - uniform, unseen.first - uniform,
              unseen.late - uniform);
  EXPECT_LT(seen.late, seen.first - 0.3) << "what is visible is not learned";
  EXPECT_GT(unseen.late, uniform - 0.005);
  EXPECT_LT(unseen.late, uniform + 0.5);
}

const auto name_of = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(, Fp64, testing::ValuesIn(ways([](const Way& way) {
                           return way.gpu && way.kernels == Kernels::kAten && !way.fused_layers;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, WholeModel, testing::ValuesIn(ways([](const Way&) { return true; })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, Branches, testing::ValuesIn(ways([](const Way& way) {
                           return way.kind != Kind::kDense;
                         })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(, AveragedKeys, testing::ValuesIn(ways([](const Way& way) {
                           return way.kind == Kind::kAverage;
                         })),
                         name_of);

} // namespace
} // namespace nsa::model
