#include "common/estimate/device_peak.h"
#include "common/estimate/estimate.h"

#include "common/base/file.h"
#include "common/spec/branches.h"
#include "common/spec/parse.h"
#include "nsa_model/model_config/config.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

namespace nsa::estimate {
namespace {

spec::RunSpec m7c() {
  spec::RunSpec spec;
  spec.data.path = "x";
  spec.train.steps = 1000;
  return spec;
}

// Returns the model's own count for the same sizes.
int64_t counted_by_the_model(const spec::RunSpec& spec) {
  model::ModelConfig c;
  c.attention = choice_from<model::Attention>(name_of(spec.model.attention)).value();
  c.vocabulary = spec.model.vocabulary;
  c.dimension = spec.model.dimension;
  c.layers = spec.model.layers;
  c.heads = spec.model.heads;
  c.kv_groups = spec.model.kv_groups;
  c.head_dimension = spec.model.head_dimension;
  c.mlp_ratio = spec.model.mlp_ratio;
  c.nsa.compression_block = spec.nsa.compression_block;
  c.nsa.compression = choice_from<model::Compression>(name_of(spec.nsa.compression)).value();
  c.nsa.gate = choice_from<model::Gate>(name_of(spec.nsa.gate)).value();
  c.nsa.compressed = spec::has(spec.nsa, spec::Branch::kCompressed);
  c.nsa.selected = spec::has(spec.nsa, spec::Branch::kSelected);
  c.nsa.sliding = spec::has(spec.nsa, spec::Branch::kSliding);
  return model::parameter_count(c);
}

TEST(Parameters, AgreeWithTheModelForEveryVariant) {
  for (const spec::Attention attention : {spec::Attention::kNsa, spec::Attention::kDense})
    for (const spec::Compression compression :
         {spec::Compression::kAverage, spec::Compression::kMlp})
      for (const spec::Gate gate : {spec::Gate::kGroupSoftmax, spec::Gate::kHeadSigmoid})
        for (const std::vector<spec::Branch>& branches :
             {std::vector{spec::Branch::kCompressed, spec::Branch::kSelected,
                          spec::Branch::kSliding},
              {spec::Branch::kCompressed, spec::Branch::kSliding},
              {spec::Branch::kSliding}}) {
          spec::RunSpec spec = m7c();
          spec.model.attention = attention;
          spec.nsa.compression = compression;
          spec.nsa.gate = gate;
          spec.nsa.branches = branches;
          EXPECT_EQ(parameters(spec).total(), counted_by_the_model(spec))
              << name_of(attention) << " " << name_of(compression) << " " << name_of(gate) << " "
              << branches.size();
        }
}

TEST(Parameters, OfTheM7CAreAboutWhatItsNameSays) {
  const Parameters p = parameters(m7c());
  EXPECT_EQ(p.embedding, 50304 * 768);
  EXPECT_NEAR(static_cast<double>(p.total()), 116.5e6, 0.3e6);
}

// Counts pairs one by one. arithmetic() uses closed forms.
TEST(Arithmetic, CountsPairsAsTheyAre) {
  spec::RunSpec spec = m7c();
  spec.model.layers = 1;
  spec.model.heads = 2;
  spec.model.head_dimension = 8;
  spec.nsa.compression_block = 8;
  spec.nsa.compression_stride = 4;
  spec.nsa.selection_block = 8;
  spec.nsa.selected_blocks = 3;
  spec.nsa.window = 10;
  for (const int64_t length : {8, 40, 64}) {
    spec.train.sequence_length = length;
    double pairs = 0;
    for (int64_t t = 0; t < length; ++t) {
      pairs += static_cast<double>(std::min<int64_t>(t + 1, 10));
      pairs += static_cast<double>(t < 24 ? t + 1 : 2 * 8 + t % 8 + 1);
      for (int64_t i = 0; i * 4 + 8 <= length; ++i)
        if (i * 4 + 8 - 1 <= t) pairs += 1;
    }
    // q.k and p.v, a multiplication and an addition each, over heads of 16 in total. The backward
    // pass takes twice the forward pass.
    EXPECT_DOUBLE_EQ(arithmetic(spec).attention, 3 * 4 * 16 * pairs) << length;
  }
}

TEST(Arithmetic, GrowsLinearlyWithNsaAndQuadraticallyWithout) {
  spec::RunSpec sparse = m7c(), full = m7c();
  full.model.attention = spec::Attention::kDense;
  const auto growth = [](spec::RunSpec spec) {
    spec.train.sequence_length = 32768;
    const double at_32k = arithmetic(spec).attention;
    spec.train.sequence_length = 65536;
    return arithmetic(spec).attention / at_32k;
  };
  EXPECT_LT(growth(sparse), 3.2);
  EXPECT_NEAR(growth(full), 4.0, 0.01);
}

TEST(Placement, ComputesAsTheWorkerWill) {
  spec::RunSpec spec = m7c();
  EXPECT_TRUE(choose_placement(spec, true, "").bf16);
  EXPECT_FALSE(choose_placement(spec, false, "flags : avx2").bf16);
  EXPECT_TRUE(choose_placement(spec, false, "flags : avx512_bf16").bf16);
  spec.precision.compute = spec::Compute::kBf16;
  EXPECT_TRUE(choose_placement(spec, false, "").bf16);
  spec.precision.mode = spec::PrecisionMode::kFp32;
  spec.precision.compute = spec::Compute::kAuto;
  EXPECT_FALSE(choose_placement(spec, true, "").bf16);
  spec.precision.mode = spec::PrecisionMode::kStochasticRounding; // only BF16 weights exist
  EXPECT_TRUE(choose_placement(spec, false, "").bf16);
}

TEST(Memory, HoldsStateByTheRule) {
  spec::RunSpec spec = m7c();
  const int64_t count = parameters(spec).total();
  const Memory bf16 = memory(spec, {.gpu = true, .bf16 = true});
  EXPECT_EQ(bf16.weights, 2 * count);
  EXPECT_EQ(bf16.masters + bf16.moments + bf16.gradients, 16 * count);
  EXPECT_EQ(bf16.collectives, 0);
  const Memory fp32 = memory(spec, {});
  EXPECT_EQ(fp32.weights, 0); // the model computes with the masters
  for (const auto& [mode, moment] : {std::pair{spec::PrecisionMode::kStochasticRounding, 4},
                                     std::pair{spec::PrecisionMode::kPure, 2}}) {
    spec.precision.mode = mode;
    const Memory without = memory(spec, choose_placement(spec, true, ""));
    EXPECT_EQ(without.weights, 2 * count) << name_of(mode);
    EXPECT_EQ(without.moments, 2 * moment * count) << name_of(mode);
    EXPECT_LT(without.masters, 2 * count) << name_of(mode) << ": a part at a time";
    EXPECT_EQ(disk(spec).checkpoint, (2 + 2 * moment) * count) << name_of(mode);
  }
  spec.precision.mode = spec::PrecisionMode::kMaster;
  spec.train.activation_recompute = true;
  EXPECT_LT(memory(spec, {}).activations, fp32.activations / 3);
  spec.parallel.ranks = 2;
  EXPECT_GT(memory(spec, {}).collectives, 0);
}

// Activations of half of the tokens, all weights, and the buffers of an exchange.
TEST(Memory, OfRanksThatShareSequencesIsLess) {
  spec::RunSpec alone = m7c();
  alone.train.sequence_length = 131072;
  alone.train.micro_batch = 1;
  alone.parallel.ranks = 2;
  spec::RunSpec shared = alone;
  shared.parallel.context_ranks = 2;
  const Placement gpu{true, true};
  const Memory whole = memory(alone, gpu), half = memory(shared, gpu);
  EXPECT_EQ(half.masters, whole.masters);
  EXPECT_NEAR(double(half.activations), double(whole.activations) / 2,
              0.05 * double(whole.activations));
  EXPECT_GT(half.collectives, whole.collectives);
  EXPECT_LT(half.total(), whole.total());
  EXPECT_EQ(2 * shared.tokens_per_step(), alone.tokens_per_step());
}

TEST(Memory, StaysWithinTheFigureOfOneH200) {
  spec::RunSpec spec = m7c();
  spec.toggles = {{"attention.kernels", "fused"}};
  spec.train.sequence_length = 32768;
  const double gib = static_cast<double>(memory(spec, {.gpu = true, .bf16 = true}).total()) /
                     static_cast<double>(int64_t{1} << 30);
  EXPECT_GT(gib, 8);
  EXPECT_LT(gib, 20);
}

// Measured memory of runs. tests/e2e/memory_estimate measured it on two cores of an AMD EPYC
// (largest resident memory of rank 0, MiB). tests/gpu/packed_run measured it on an H200 (largest
// allocated memory, GiB).
struct Seen {
  const char* what;
  bool bf16;
  double mebibytes;
  std::vector<std::string> overrides;
};

TEST(Memory, OfRunsOnACpuAgreesWithWhatTheyCameTo) {
  const auto text = read_file(test::source_folder() + "/configs/quickstart.toml");
  ASSERT_TRUE(text);
  const std::vector<std::string> one = {"parallel.ranks=1", "train.global_batch=0"},
                                 wide = {"parallel.ranks=1", "train.global_batch=0",
                                         "model.dimension=512", "model.heads=8",
                                         "model.head_dimension=64"};
  const auto with = [](std::vector<std::string> base, std::vector<std::string> more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
  };
  const std::vector<std::string> tiny =
      with(one, {"model.dimension=32", "model.layers=1", "model.heads=2", "model.kv_groups=1",
                 "model.head_dimension=16", "train.sequence_length=128", "nsa.window=32"});
  const std::vector<std::string> large_batch = with(one, {"train.micro_batch=8"});
  const std::string recompute = "train.activation_recompute=true";
  const Seen all[] = {
      {"tiny, one rank", true, 156.4, tiny},
      {"tiny, one rank", false, 143.6, tiny},
      {"quickstart, two ranks", true, 237.6, {}},
      {"quickstart, two ranks", false, 240.8, {}},
      {"quickstart, one rank", true, 234.2, one},
      {"quickstart, four ranks", true, 236.3, {"parallel.ranks=4", "train.global_batch=0"}},
      {"dense twin", true, 215.7, {"model.attention=\"dense\""}},
      {"dimension 512", true, 693.7, wide},
      {"dimension 512, recompute", true, 593.8, with(wide, {recompute})},
      {"micro-batch 8", true, 385.2, large_batch},
      {"micro-batch 8, recompute", true, 288.1, with(large_batch, {recompute})}};
  for (const Seen& seen : all) {
    const spec::RunSpec spec = spec::parse_run_file(*text, "quickstart.toml", seen.overrides).spec;
    const double mebibytes =
        double(memory(spec, {.gpu = false, .bf16 = seen.bf16}).total()) / double(1 << 20);
    EXPECT_NEAR(mebibytes, seen.mebibytes, 0.1 * seen.mebibytes) << seen.what;
  }
}

struct SeenOnGpu {
  const char *attention, *kernels, *layers;
  int64_t length;
  double gibibytes; // allocated at the peak
};

// From the notes whole-steps, long-sequences and loss-of-exponentials of docs/lab: nsa-bench model
// and tests/gpu/packed_run on an H200, with 32,768 tokens or one sequence. The dense twin was
// measured before a chunk had 4,096 tokens.
TEST(Memory, OfTheM7COnAGpuAgreesWithWhatItCameTo) {
  for (const SeenOnGpu& seen : {SeenOnGpu{"nsa", "fused", "aten", 2048, 13.94},
                                {"nsa", "fused", "aten", 8192, 13.94},
                                {"nsa", "fused", "aten", 32768, 13.96},
                                {"nsa", "fused", "auto", 4096, 12.96},
                                {"nsa", "auto", "auto", 4096, 12.96},
                                {"nsa", "fused", "fused", 32768, 12.98},
                                {"nsa", "fused", "auto", 65536, 19.25},
                                {"nsa", "fused", "auto", 131072, 35.49},
                                {"nsa", "fused", "auto", 262144, 69.07},
                                {"nsa", "aten", "aten", 2048, 17.26},
                                {"dense", "aten", "aten", 2048, 12.23},
                                {"dense", "aten", "auto", 2048, 11.17}}) {
    spec::RunSpec spec = m7c();
    spec.model.attention = *spec::choice_from<spec::Attention>(seen.attention);
    spec.toggles = {{"attention.kernels", seen.kernels}, {"layers.kernels", seen.layers}};
    spec.train.sequence_length = seen.length;
    spec.train.micro_batch = std::max<int64_t>(1, 32768 / seen.length);
    const auto bytes = estimate(spec, {.gpu = true, .bf16 = true})["memory_bytes"]["gpu_tensors"];
    EXPECT_NEAR(bytes.get<double>() / double(int64_t{1} << 30), seen.gibibytes,
                0.05 * seen.gibibytes)
        << seen.attention << ' ' << seen.kernels << ' ' << seen.layers << ' ' << seen.length;
  }
}

// With recompute, and the results of attention kept or not.
TEST(Memory, OfRecomputeOnAGpuAgreesWithWhatItCameTo) {
  struct Recomputed {
    int64_t length;
    bool attention;
    double gibibytes;
  };
  for (const Recomputed& seen :
       {Recomputed{131072, true, 8.31}, Recomputed{131072, false, 17.20},
        Recomputed{524288, false, 63.38}, Recomputed{1048576, false, 126.27}}) {
    spec::RunSpec spec = m7c();
    spec.train.sequence_length = seen.length;
    spec.train.activation_recompute = true;
    spec.train.recompute_attention = seen.attention;
    const auto bytes = estimate(spec, {.gpu = true, .bf16 = true})["memory_bytes"]["gpu_tensors"];
    const double gibibytes = bytes.get<double>() / double(int64_t{1} << 30);
    const char* kept = seen.attention ? "" : ", attention kept";
    EXPECT_GE(gibibytes, seen.gibibytes) << seen.length << kept;
    EXPECT_LE(gibibytes, 1.15 * seen.gibibytes) << seen.length << kept;
  }
}

// From 65,536 tokens on the MLP keeps only one of its two hidden tensors. With recompute, the
// results of attention are kept unless they are computed again.
TEST(Memory, OfManyTokensIsOfFewerTensors) {
  spec::RunSpec spec = m7c();
  const Placement gpu{.gpu = true, .bf16 = true};
  const auto activations = [&](int64_t tokens) {
    spec.train.sequence_length = tokens;
    return memory(spec, gpu).activations;
  };
  // Equal except for the memory of one more token.
  EXPECT_NEAR(double(activations(65535) - activations(65536)), 65536.0 * 12 * 4 * 768 * 2, 1e6);
  spec.train.activation_recompute = true;
  const int64_t inputs = activations(131072);
  spec.train.recompute_attention = false;
  EXPECT_EQ(activations(131072) - inputs,
            int64_t{131072} * 11 * (4 * 768 * 2 + 3 * 12 * 4 + 2 * 2 * 16 * 4 + 2 * 128 * 2 / 16));
}

// Only the kernels of NSA compute packed documents in batches. documents_test compares
// document_batches() with them.
TEST(Memory, CountsBatchesOfPackedDocuments) {
  spec::RunSpec spec = m7c();
  spec.train.sequence_length = 2048;
  spec.train.micro_batch = 16;
  const Placement gpu{.gpu = true, .bf16 = true};
  const Memory rows = memory(spec, gpu);
  EXPECT_EQ(rows.documents, 0);
  spec.data.document_mask = true;
  const Memory packed = memory(spec, gpu);
  EXPECT_EQ(packed.activations, rows.activations);
  EXPECT_EQ(packed.total() - rows.total(), packed.documents);
  // At most half as many tokens again and 4,096, counted in sixteenths: 26 of them. Each takes what
  // 12 layers keep for a token.
  const DocumentBatches batches = document_batches(spec);
  EXPECT_EQ(batches.tokens, 32768 / 16 * 26);
  EXPECT_EQ(batches.kept,
            (batches.tokens - 32768) * (3 * (2 * 768 + 4 * 12) + 2 * 2 * 16 * 4 + 32));
  EXPECT_GE(packed.documents, 12 * batches.kept);
  EXPECT_LT(packed.documents, 12 * batches.kept + batches.workspace);
  spec.train.activation_recompute = true;
  EXPECT_LT(memory(spec, gpu).documents, packed.documents / 2);
  spec.train.activation_recompute = false;
  spec.toggles["attention.kernels"] = "aten";
  EXPECT_EQ(memory(spec, gpu).documents, 0);
  spec.toggles.clear();
  EXPECT_EQ(memory(spec, {}).documents, 0);
  spec.model.attention =
      spec::Attention::kDense; // FlashAttention computes all documents together or one by one
  EXPECT_EQ(memory(spec, gpu).documents, 0);
}

// The terms of these figures, by their formulas (bytes per token and layer of the M7C, BF16).
TEST(Memory, OfKernelsDiffersByWhatTheyKeep) {
  constexpr int64_t kTokens = 32768, kLayers = 12, kQuery = 768, kKv = 128, kVocabulary = 50304;
  const auto of = [&](const char* attention, const char* kernels, const char* layers,
                      int64_t length) {
    spec::RunSpec spec = m7c();
    spec.model.attention = *spec::choice_from<spec::Attention>(attention);
    spec.toggles = {{"attention.kernels", kernels}, {"layers.kernels", layers}};
    spec.train.sequence_length = length;
    spec.train.micro_batch = kTokens / length;
    return memory(spec, {.gpu = true, .bf16 = true});
  };
  const Memory composed = of("nsa", "fused", "aten", 2048),
               fused = of("nsa", "fused", "auto", 2048), aten = of("nsa", "aten", "aten", 2048),
               dense = of("dense", "aten", "aten", 2048),
               fused_dense = of("dense", "aten", "auto", 2048);
  // The logits of a chunk of 4,096 tokens exist only in BF16. Those of 2,668 tokens exist in FP32
  // and twice in BF16. The data of a backward pass take their place, and are larger than the
  // former.
  const int64_t held = kTokens * (3 * kQuery * 2 + (kQuery + 2 * kKv) * 2 * 4);
  EXPECT_EQ(fused.activations - composed.activations, held - 4096 * 2 * kVocabulary);
  // Exponentials in place of logits have an FP32 product and scaled rows beside them.
  EXPECT_EQ(fused.logits - composed.logits,
            (4096 * 2 - 2668 * 8) * kVocabulary + 4096 * 768 * (4 + 2));
  // Plain operations keep all projections in addition to the rotated heads.
  EXPECT_EQ(dense.activations - fused_dense.activations, kTokens * kLayers * (kQuery + kKv) * 2);
  // The outputs of three branches are kept as well. The backward pass has six copies of each of 15
  // pairs of the tokens after the first 1,024, beyond the memory of the logits.
  const int64_t gradients = 3 * kQuery * 2 + (kQuery + 2 * kKv) * 2 * 4;
  const int64_t pairs = 6 * 15 * kQuery * 2 / 2;
  EXPECT_EQ(aten.activations - composed.activations, kTokens * kLayers * 3 * kQuery * 2 +
                                                         kTokens * (gradients + pairs) -
                                                         2668 * kVocabulary * 8);
  EXPECT_EQ(of("nsa", "aten", "aten", 1024).activations - composed.activations,
            kTokens * kLayers * 3 * kQuery * 2)
      << "no token sees more blocks than are selected";
}

TEST(Memory, TakesTheAttentionThatTheWorkerTakes) {
  const auto tensors = [](const std::vector<std::pair<std::string, int64_t>>& sizes,
                          const char* kernels, Placement placement) {
    spec::RunSpec spec = m7c();
    spec.toggles = {{"attention.kernels", kernels}};
    for (const auto& [name, value] : sizes) {
      if (name == "window") spec.nsa.window = value;
      if (name == "head_dimension") spec.model.head_dimension = value;
    }
    return memory(spec, placement).activations;
  };
  const Placement gpu{.gpu = true, .bf16 = true};
  ASSERT_LT(tensors({}, "fused", gpu), tensors({}, "aten", gpu));
  EXPECT_EQ(tensors({}, "auto", gpu), tensors({}, "fused", gpu));
  EXPECT_EQ(tensors({{"window", 256}}, "auto", gpu), tensors({{"window", 256}}, "aten", gpu));
  EXPECT_EQ(tensors({{"head_dimension", 32}}, "auto", gpu),
            tensors({{"head_dimension", 32}}, "aten", gpu));
  const Placement fp32{.gpu = true, .bf16 = false};
  EXPECT_EQ(tensors({}, "auto", fp32), tensors({}, "aten", fp32));
}

TEST(Disk, CountsWhatIsKeptAndTheOneBeingWritten) {
  spec::RunSpec spec = m7c();
  spec.checkpoint = {.interval_steps = 100, .keep_last = 3, .keep_every_steps = 500};
  EXPECT_EQ(disk(spec).checkpoint, 12 * parameters(spec).total());
  EXPECT_EQ(disk(spec).checkpoints_kept, 3 + 2 + 1);
  spec.checkpoint = {.interval_steps = 0, .at_end = false};
  EXPECT_EQ(disk(spec).total(), 0);
}

TEST(Estimate, SaysNoTimeWithoutARate) {
  const auto unknown = estimate(m7c(), {});
  EXPECT_TRUE(unknown["seconds"].is_null());
  const auto known = estimate(m7c(), {}, 2048);
  EXPECT_DOUBLE_EQ(known["seconds"].get<double>(), 1000);
}

TEST(DevicePeak, IsByTheGpusName) {
  EXPECT_EQ(peak_bf16_flops("cuda:0 NVIDIA H200 GPU-1234"), 989.4e12);
  EXPECT_EQ(peak_bf16_flops("cuda:0 NVIDIA H20 GPU-1234"), 148e12);
  EXPECT_EQ(peak_bf16_flops("cuda:1 NVIDIA A100-SXM4-80GB GPU-1234"), 312e12);
  EXPECT_EQ(peak_bf16_flops("NVIDIA H100 PCIe"), 756e12) << "a variant has a rate of its own";
  EXPECT_EQ(peak_bf16_flops("cuda:0 NVIDIA of the future"), 0);
  EXPECT_EQ(peak_bf16_flops("cpu AMD EPYC"), 0);
}

} // namespace
} // namespace nsa::estimate
