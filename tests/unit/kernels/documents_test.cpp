// The batches in which packed documents run, and where their rows are in a batch and outside of it.
// None of this needs a GPU. nsa-kernel-check tests that the kernels give the results of each
// document alone.
#include "common/estimate/estimate.h"
#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/document_copy/document_place.cuh"
#include "nsa_model/kernels/fused/documents.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace nsa::kernels {
namespace {

// Fills rows with documents of random lengths. The last document of a row is cut at its end.
template <typename Length>
std::vector<Document> packed(const AttentionShape& shape, Length length) {
  std::vector<Document> documents;
  for (int row = 0; row < shape.batch; ++row) {
    int compressed = 0;
    for (int begin = 0; begin < shape.sequence;) {
      const int tokens = std::min(length(row), shape.sequence - begin);
      documents.push_back({row, begin, tokens, compressed});
      begin += tokens;
      compressed += compressed_count(tokens);
    }
  }
  return documents;
}

struct Layout {
  const char* name;
  AttentionShape shape;
  std::vector<Document> documents;
};
std::vector<Layout> layouts() {
  std::mt19937 random(11);
  const auto between = [&](int low, int high) {
    return
        [&random, low, high](int) { return std::uniform_int_distribution<int>(low, high)(random); };
  };
  const auto log_uniform = [&](double low, double high) {
    return [&random, low, high](int) {
      std::uniform_real_distribution<double> exponent(std::log2(low), std::log2(high));
      return static_cast<int>(std::exp2(exponent(random)));
    };
  };
  std::vector<Layout> all;
  const auto add = [&](const char* name, AttentionShape shape, auto length) {
    all.push_back({name, shape, packed(shape, length)});
  };
  add("one row", {1, 777, 2}, [](int) { return 777; });
  add("whole rows", {16, 2048, 2}, [](int) { return 2048; });
  add("some whole rows", {40, 1000, 2}, [](int row) { return row / 20 == 1 ? 1000 : 130; });
  add("few whole rows", {4, 1000, 2}, [](int row) { return row == 1 ? 1000 : 130; });
  add("one token each", {3, 500, 2}, [](int) { return 1; });
  add("many of one token", {2, 40000, 2}, [](int) { return 1; });
  add("no compressed token", {5, 900, 2}, between(1, 31));
  add("no whole block", {5, 900, 2}, between(1, 63));
  add("log-uniform", {16, 2048, 2}, log_uniform(16, 2048));
  add("long and short", {3, 70000, 2}, log_uniform(1, 70000));
  add("around the borders of kernels", {8, 9000, 2}, between(1000, 2100));
  add("around a later border", {8, 14000, 2}, between(5800, 6300));
  add("sixteen wide heads", {8, 5000, 1, 16, 128}, between(900, 1100));
  for (int i = 0; i < 40; ++i) {
    const int sequence = 1 + static_cast<int>(random() % 6000);
    const int most = 1 + static_cast<int>(random() % static_cast<unsigned>(sequence));
    add("drawn",
        {1 + static_cast<int>(random() % 20), sequence, 1 + static_cast<int>(random() % 4)},
        between(1, most));
  }
  return all;
}

std::tuple<int, int, int, int> key(const Document& document) {
  return {document.row, document.begin, document.length, document.compressed_begin};
}

// For a batch that is copied: kernels that support the whole problem support the batch. The
// query-major kernels compute the same tokens as alone, with the same view of their keys.
void expect_batch_is_served(const Layout& layout, const DocumentBatch& batch,
                            const FusedTuning& tuning) {
  const AttentionShape shape = batch.shape(layout.shape);
  EXPECT_LE(shape.sequence, layout.shape.sequence);
  EXPECT_TRUE(serves::why_not_attention({.compute_capability = 90,
                                         .batch = shape.batch,
                                         .sequence = shape.sequence,
                                         .heads = shape.heads * shape.groups,
                                         .groups = shape.groups,
                                         .head_dimension = shape.head_dim})
                  .empty());
  EXPECT_LE(shape.batch * ((shape.sequence + 127) / 128),
            std::max(1024, layout.shape.batch * layout.shape.sequence / 128));
  const int first_tokens = query_major_tokens(shape, tuning);
  for (const Document& document : batch.documents) {
    EXPECT_LE(document.length, batch.length);
    AttentionShape alone = shape;
    alone.sequence = document.length;
    const int own = query_major_tokens(alone, tuning);
    EXPECT_EQ(own, std::min(document.length, first_tokens)) << "of " << batch.length;
    EXPECT_EQ(own > kDenseFirstTokens, first_tokens > kDenseFirstTokens) << document.length;
  }
}

TEST(DocumentPlan, RunsEveryDocumentOnceInBatchesThatAreServed) {
  for (const Layout& layout : layouts()) {
    for (const auto& [batching, query_major] : {std::pair{Batching::kByLength, 0},
                                                {Batching::kByLength, kDenseFirstTokens},
                                                {Batching::kByLength, 1500},
                                                {Batching::kOneByOne, 0}}) {
      SCOPED_TRACE(testing::Message() << layout.name << ", " << query_major);
      const FusedTuning tuning = {.query_major_tokens = query_major};
      const DocumentPlan plan = plan_documents(layout.shape, tuning, layout.documents, batching);
      std::multiset<std::tuple<int, int, int, int>> wanted, found;
      for (const Document& document : layout.documents)
        wanted.insert(key(document));
      int64_t tokens = 0, compressed = 0;
      for (const DocumentBatch& batch : plan.batches) {
        ASSERT_FALSE(batch.documents.empty());
        EXPECT_EQ(batch.token_begin, tokens);
        EXPECT_EQ(batch.compressed_begin, compressed);
        tokens += static_cast<int64_t>(batch.documents.size()) * batch.length;
        compressed += static_cast<int64_t>(batch.documents.size()) * compressed_count(batch.length);
        for (const Document& document : batch.documents)
          found.insert(key(document));
        if (!batch.in_place) {
          EXPECT_GT(batch.documents.size(), 1U);
          expect_batch_is_served(layout, batch, tuning);
          continue;
        }
        for (std::size_t i = 0; i < batch.documents.size(); ++i) { // they are contiguous in memory
          EXPECT_EQ(batch.documents[i].length, batch.length);
          if (i == 0) continue;
          EXPECT_EQ(batch.length, layout.shape.sequence);
          EXPECT_EQ(batch.documents[i].row, batch.documents[i - 1].row + 1);
        }
      }
      EXPECT_EQ(plan.tokens, tokens);
      EXPECT_EQ(plan.compressed, compressed);
      EXPECT_EQ(found, wanted);
    }
  }
}

TEST(DocumentPlan, FillsUpWithinItsBound) {
  for (const Layout& layout : layouts()) {
    const DocumentPlan plan = plan_documents(layout.shape, {}, layout.documents);
    const double tokens = static_cast<double>(layout.shape.batch) * layout.shape.sequence;
    EXPECT_LE(static_cast<double>(plan.tokens), kMostFilling * tokens + kFreeFilling)
        << layout.name;
  }
}

TEST(DocumentPlan, TakesFewBatchesAndLeavesWholeRowsWhereTheyAre) {
  const auto plan_of = [](const char* name) {
    for (const Layout& layout : layouts())
      if (layout.name == std::string(name))
        return plan_documents(layout.shape, {}, layout.documents);
    throw std::invalid_argument(name);
  };
  const DocumentPlan rows = plan_of("whole rows");
  ASSERT_EQ(rows.batches.size(), 1U);
  EXPECT_TRUE(rows.batches[0].in_place);
  EXPECT_EQ(rows.tokens, 16 * 2048);

  const DocumentPlan some = plan_of("some whole rows");
  ASSERT_EQ(some.batches.size(), 2U);
  EXPECT_TRUE(some.batches[0].in_place);
  EXPECT_EQ(some.batches[0].documents.size(), 20U);
  EXPECT_EQ(some.batches[1].length, 160);

  const DocumentPlan mixed = plan_of("log-uniform"); // about 90 documents
  EXPECT_LE(mixed.batches.size(), 9U);
  EXPECT_LE(mixed.tokens, 16 * 2048 * 13 / 10);

  EXPECT_EQ(plan_of("one token each").batches.size(), 2U);     // 1,500 documents
  EXPECT_EQ(plan_of("many of one token").batches.size(), 79U); // each with 1,024 columns of keys
}

TEST(DocumentPlan, ClassesAreFourInEveryPowerOfTwo) {
  std::set<int> lengths;
  for (int length = 1; length <= kMaxPortableSequence; ++length) {
    const int filled = class_length(length);
    ASSERT_GE(filled, length);
    ASSERT_LT(filled, 1.25 * length + 1e-9 + (length <= 8 ? 1 : 0)) << length;
    ASSERT_EQ(class_length(filled), filled);
    lengths.insert(filled);
  }
  EXPECT_EQ(lengths.size(), 8U + 4 * 14);
  EXPECT_TRUE(lengths.contains(kDenseFirstTokens) && lengths.contains(kMostMaskedTokens));
}

// Does on the host what the copying kernel does. Each word of a row says to which row it belongs.
void run_copy(const DocumentCopyParams& params) {
  for (std::size_t first = 0; first < params.batch->documents.size(); first += kDocumentsALaunch) {
    const DocumentCopyLaunch launch = document_copy_launch(params, first);
    for (int index = 0; index < launch.tensor_count; ++index) {
      const DocumentTensor& tensor = launch.tensors[index];
      const int all_rows = launch.document_count * rows_of(launch.length, tensor.compressed);
      const auto blocks =
          static_cast<int>(launch.first_block[index + 1] - launch.first_block[index]);
      ASSERT_GE(blocks * rows_a_block(tensor), all_rows);
      ASSERT_LT((blocks - 1) * rows_a_block(tensor), all_rows);
      const std::size_t words = static_cast<std::size_t>(tensor.row_bytes) / sizeof(int32_t);
      auto* packed_words = static_cast<int32_t*>(tensor.packed);
      auto* filled_words = static_cast<int32_t*>(tensor.filled);
      for (int row = 0; row < all_rows; ++row) {
        const DocumentPlace place(launch, tensor.compressed, row);
        for (std::size_t word = 0; word < words; ++word) {
          int32_t& filled = filled_words[static_cast<std::size_t>(place.filled) * words + word];
          if (place.packed < 0) {
            if (launch.to_filled) filled = tensor.filling;
            continue;
          }
          int32_t& origin = packed_words[static_cast<std::size_t>(place.packed) * words + word];
          (launch.to_filled ? filled : origin) = launch.to_filled ? origin : filled;
        }
      }
    }
  }
}

TEST(DocumentCopy, BringsEveryRowToItsDocumentAndBack) {
  for (const Layout& layout : layouts()) {
    if (int64_t{layout.shape.batch} * layout.shape.sequence > 100000) continue;
    SCOPED_TRACE(layout.name);
    const AttentionShape& shape = layout.shape;
    const DocumentPlan plan = plan_documents(shape, {}, layout.documents);
    for (const bool compressed : {false, true}) {
      constexpr std::size_t kWords = 3;
      constexpr int32_t kFilling = -1, kUntouched = -7;
      const int row_count = rows_of(shape.sequence, compressed);
      std::vector<int32_t> packed(static_cast<std::size_t>(shape.batch) *
                                  static_cast<std::size_t>(row_count) * kWords);
      std::iota(packed.begin(), packed.end(), 0);
      for (const DocumentBatch& batch : plan.batches) {
        if (batch.in_place) continue;
        const auto rows = static_cast<std::size_t>(rows_of(batch.length, compressed));
        std::vector<int32_t> filled(batch.documents.size() * rows * kWords, kUntouched);
        std::vector<int32_t> back(packed.size(), kUntouched);
        const auto copy = [&](CopyDirection direction, std::vector<int32_t>& origin) {
          const DocumentTensor tensor = {origin.data(), filled.data(), kWords * sizeof(int32_t),
                                         compressed, kFilling};
          run_copy({shape, &batch, direction, {&tensor, 1}});
        };
        copy(CopyDirection::kToFilled, packed);
        std::vector<int32_t> expected_back(packed.size(), kUntouched);
        for (std::size_t i = 0; i < batch.documents.size(); ++i) {
          const Document& document = batch.documents[i];
          const auto begin = static_cast<std::size_t>(
              document.row * row_count + (compressed ? document.compressed_begin : document.begin));
          const auto own = static_cast<std::size_t>(rows_of(document.length, compressed));
          for (std::size_t word = 0; word < rows * kWords; ++word) {
            const int32_t wanted = word < own * kWords ? packed[begin * kWords + word] : kFilling;
            ASSERT_EQ(filled[i * rows * kWords + word], wanted);
            if (word < own * kWords) expected_back[begin * kWords + word] = wanted;
          }
        }
        copy(CopyDirection::kToPacked, back);
        ASSERT_EQ(back, expected_back);
      }
    }
  }
}

// The copies of all tensors fit into the size that documents.h computes.
TEST(Documents, WorkspaceIsTheLargestBatchs) {
  for (const Layout& layout : layouts()) {
    FusedInputs inputs;
    inputs.shape = layout.shape;
    const auto some = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    inputs.q = static_cast<__nv_bfloat16*>(some(0x1000));
    inputs.gates = static_cast<float*>(some(0x1000));
    for (int branch = 0; branch < kBranches; ++branch)
      inputs.k[branch] = inputs.v[branch] = inputs.q;
    inputs.pool_k = inputs.pool_v = inputs.q;
    const DocumentPlan plan = plan_documents(layout.shape, {}, layout.documents);
    const int width = layout.shape.groups * layout.shape.head_dim; // of the keys
    const int heads = layout.shape.groups * layout.shape.heads;
    std::size_t forward = 0, backward = 0;
    for (const DocumentBatch& batch : plan.batches) {
      const AttentionShape shape = batch.shape(layout.shape);
      const auto tokens = static_cast<std::size_t>(shape.batch) * shape.sequence;
      const std::size_t query = 2 * tokens * static_cast<std::size_t>(heads * shape.head_dim);
      const std::size_t keys = 2 * tokens * static_cast<std::size_t>(width);
      const std::size_t gates = 12 * tokens * static_cast<std::size_t>(heads);
      const std::size_t some_pieces = 20 * 256; // each begins at a multiple of 256 bytes
      const bool copied = !batch.in_place;
      forward = std::max(forward, fused_forward_workspace_bytes(shape) + some_pieces +
                                      (copied ? 2 * query + 6 * keys + gates : 0));
      backward = std::max(backward, fused_backward_workspace_bytes(shape) + some_pieces +
                                        (copied ? 3 * query + 10 * keys + 2 * gates : 0));
    }
    const auto near = [&](std::size_t bytes, std::size_t bound) {
      EXPECT_LE(bytes, bound) << layout.name;
      EXPECT_GE(bytes + 30 * 256, bound) << layout.name;
    };
    near(documents_forward_workspace_bytes(inputs, plan), forward);
    near(documents_backward_workspace_bytes(inputs, plan), backward);
  }
}

int64_t larger_workspace(const FusedInputs& inputs, const DocumentPlan& plan) {
  return static_cast<int64_t>(std::max(documents_forward_workspace_bytes(inputs, plan),
                                       documents_backward_workspace_bytes(inputs, plan)));
}

// `nsactl plan` (common/estimate) has a formula for sizes that the kernels compute. It is never too
// small, and not much larger than the largest layout.
TEST(Documents, AreWithinWhatThePlanOfARunSays) {
  std::mt19937 random(5);
  const auto log_uniform = [&](double low, double high) {
    return [&random, low, high](int) {
      std::uniform_real_distribution<double> exponent(std::log2(low), std::log2(high));
      return static_cast<int>(std::exp2(exponent(random)));
    };
  };
  for (const AttentionShape& shape : {AttentionShape{16, 2048, 2},
                                      {4, 8192, 2},
                                      {1, 32768, 2},
                                      {64, 512, 2},
                                      {2, 2048, 2},
                                      {8, 16384, 2},
                                      {4, 8192, 2, 8},
                                      {4, 8192, 2, 16},
                                      {16, 2000, 2, 16},
                                      {1, 131072, 2},
                                      {8, 4096, 2, 8, 128},
                                      {8, 4096, 1, 16, 128}}) {
    FusedInputs inputs = {};
    inputs.shape = shape;
    inputs.tuning.family = kernel_family(90, shape.head_dim);
    inputs.q = reinterpret_cast<__nv_bfloat16*>(0x1000);
    inputs.gates = reinterpret_cast<float*>(0x1000);
    for (int branch = 0; branch < kBranches; ++branch)
      inputs.k[branch] = inputs.v[branch] = inputs.q;
    inputs.pool_k = inputs.pool_v = inputs.q;

    spec::RunSpec spec;
    spec.model.heads = shape.groups * shape.heads;
    spec.model.kv_groups = shape.groups;
    spec.model.head_dimension = shape.head_dim;
    spec.train.micro_batch = shape.batch;
    spec.train.sequence_length = shape.sequence;
    const estimate::DocumentBatches said = estimate::document_batches(spec);

    const int64_t tokens = int64_t{shape.batch} * shape.sequence, part = tokens / 16;
    const int64_t heads = spec.model.heads, query = heads * shape.head_dim;
    const int64_t saved = kBranches * (2 * query + 4 * heads) + 4 * shape.groups * kSlots;
    double most_kept = 0, most_workspace = 0;
    for (const auto& [low, high] : {std::pair<double, double>{16, 128},
                                    {16, shape.sequence},
                                    {256, shape.sequence},
                                    {shape.sequence * 0.6, shape.sequence * 0.9},
                                    {shape.sequence, shape.sequence}}) {
      SCOPED_TRACE(testing::Message()
                   << shape.batch << " x " << shape.sequence << ", " << low << " to " << high);
      const DocumentPlan plan =
          plan_documents(shape, inputs.tuning, packed(shape, log_uniform(low, high)));
      const int64_t filled = (plan.tokens + part - 1) / part * part;
      const auto kept = (filled - tokens) * saved +
                        static_cast<int64_t>(documents_list_bytes(shape, plan)) -
                        static_cast<int64_t>(fused_list_bytes(shape)) +
                        (plan.compressed - shape.batch * compressed_count(shape.sequence)) * 4 *
                            shape.groups * shape.head_dim;
      const int64_t workspace = larger_workspace(inputs, plan);
      EXPECT_LE(filled, said.tokens);
      EXPECT_LE(kept, said.kept);
      EXPECT_LE(workspace, said.workspace);
      FusedInputs older = inputs;
      older.tuning.family = KernelFamily::kPortable;
      const DocumentPlan older_plan =
          plan_documents(shape, older.tuning, packed(shape, log_uniform(low, high)));
      EXPECT_LE(larger_workspace(older, older_plan), said.workspace) << "portable";
      most_kept = std::max(most_kept, double(kept) / double(said.kept));
      most_workspace = std::max(most_workspace, double(workspace) / double(said.workspace));
    }
    EXPECT_GT(most_kept, 0.4) << shape.batch << " x " << shape.sequence;
    // The formula counts the copies of every token, but one batch has only a part of them.
    EXPECT_GT(most_workspace, 0.4) << shape.batch << " x " << shape.sequence;
  }
}

TEST(Documents, InPlaceAreSlicesOfEveryTensor) {
  // These are only addresses; nothing is read from them.
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
  const AttentionShape shape = {3, 1000, 2, 5, 64};
  FusedInputs inputs;
  inputs.shape = shape;
  inputs.q = static_cast<__nv_bfloat16*>(at(0x1000000));
  FusedSaved saved;
  FusedGradients gradients;
  for (int branch = 0; branch < kBranches; ++branch) {
    inputs.k[branch] = inputs.v[branch] = static_cast<__nv_bfloat16*>(at(0x2000000));
    saved.branch_out[branch] = static_cast<__nv_bfloat16*>(at(0x3000000));
    saved.branch_lse[branch] = static_cast<float*>(at(0x4000000));
    gradients.d_k[branch] = gradients.d_v[branch] = static_cast<__nv_bfloat16*>(at(0x2000000));
  }
  inputs.k[2] = nullptr; // as if the window were off
  inputs.gates = static_cast<float*>(at(0x5000000));
  saved.indices = static_cast<int32_t*>(at(0x6000000));
  inputs.given_indices = static_cast<int32_t*>(at(0x9000000));
  gradients.d_out = gradients.d_q = static_cast<__nv_bfloat16*>(at(0x7000000));
  gradients.d_gates = static_cast<float*>(at(0x8000000));
  const DocumentBatch batch = {
      .length = 450, .documents = {{2, 300, 450, 17}}, .token_begin = 5000, .compressed_begin = 70};
  const std::ptrdiff_t token = 2 * 1000 + 300;
  const std::ptrdiff_t compressed = 2 * compressed_count(1000) + 17;

  const FusedInputs one = inputs_in_place(inputs, batch);
  EXPECT_EQ(one.shape.batch, 1);
  EXPECT_EQ(one.shape.sequence, 450);
  EXPECT_EQ(one.shape.groups, 2);
  EXPECT_EQ(one.shape.heads, 5);
  EXPECT_EQ(one.q - inputs.q, token * 10 * 64);
  EXPECT_EQ(one.k[0] - inputs.k[0], compressed * 2 * 64);
  EXPECT_EQ(one.v[1] - inputs.v[1], token * 2 * 64);
  EXPECT_EQ(one.k[2], nullptr);
  EXPECT_EQ(one.gates - inputs.gates, token * 10 * 3);
  EXPECT_EQ(one.given_indices - inputs.given_indices, token * 2 * 16);
  int lists = 0;
  const FusedSaved kept = saved_of(shape, saved, batch, &lists);
  EXPECT_EQ(kept.branch_out[1] - saved.branch_out[1], 5000 * 10 * 64);
  EXPECT_EQ(kept.branch_lse[0] - saved.branch_lse[0], 5000 * 10);
  EXPECT_EQ(kept.indices - saved.indices, 5000 * 2 * 16);
  EXPECT_EQ(kept.lists, &lists);
  const FusedGradients d = gradients_in_place(inputs, gradients, batch);
  EXPECT_EQ(d.d_q - gradients.d_q, token * 10 * 64);
  EXPECT_EQ(d.d_k[0] - gradients.d_k[0], compressed * 2 * 64);
  EXPECT_EQ(d.d_gates - gradients.d_gates, token * 10 * 3);
  // With pooling, the gradients of the compressed branch are those of the tokens.
  inputs.pool_k = inputs.pool_v = inputs.q;
  EXPECT_EQ(gradients_in_place(inputs, gradients, batch).d_k[0] - gradients.d_k[0], token * 2 * 64);
  // Wider heads have wider rows.
  inputs.shape.head_dim = 128;
  EXPECT_EQ(inputs_in_place(inputs, batch).q - inputs.q, token * 10 * 128);
  EXPECT_EQ(inputs_in_place(inputs, batch).shape.head_dim, 128);
  EXPECT_EQ(gradients_in_place(inputs, gradients, batch).d_q - gradients.d_q, token * 10 * 128);
  EXPECT_EQ(saved_of(inputs.shape, saved, batch, &lists).branch_out[1] - saved.branch_out[1],
            5000 * 10 * 128);
}

} // namespace
} // namespace nsa::kernels
