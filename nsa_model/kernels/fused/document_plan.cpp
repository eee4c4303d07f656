#include "nsa_model/kernels/fused/document_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "nsa_model/kernels/common/limits.h"

namespace nsa::kernels {
namespace {

// Costs in eighths of the time of a token in a long batch (see kLaunchTokens). Copies move 24 KB a
// token, forward and backward (7 of 50 ns). No tile has fewer than 64 tokens.
constexpr int64_t kToken = 8;
constexpr int64_t kCopiedToken = 1;
constexpr int kTile = 64;

int64_t computed(int length) {
  return kToken * std::max(length, kTile);
}

// Sequences whose tokens use the same kernels get the same number. It depends on whether there are
// lists, and on how the tokens before them see their keys (fused.cpp).
int kernels_of(AttentionShape shape, const FusedTuning& tuning, int length) {
  shape.sequence = length;
  const int first_tokens = query_major_tokens(shape, tuning);
  if (tuning.family == KernelFamily::kPortable) return first_tokens < length ? 1 : 0;
  return first_tokens < length ? 2 + first_tokens : first_tokens > kDenseFirstTokens ? 1 : 0;
}

// Largest number of sequences of this length in one batch. Launches can count only so many rows
// (serves::kMostRows). Columns of 128 keys have partial gradients, 64 KB a column and group. So
// there are at most kMostColumns, or as many as the whole batch has without documents.
constexpr int kColumn = 128;
constexpr int64_t kMostColumns = 1024;
int64_t most_sequences(const AttentionShape& shape, int length) {
  const int64_t pairs = INT32_MAX / kSlots;
  const int64_t columns = std::max(kMostColumns, int64_t{shape.batch} * shape.sequence / kColumn);
  return std::max<int64_t>(
      1, std::min({int64_t{kMaxKvHeads / shape.groups}, pairs / (int64_t{shape.groups} * length),
                   columns / ((length + kColumn - 1) / kColumn)}));
}

struct Class {
  int length;
  int kernels;
  std::vector<Document> documents;
};

// Divides classes, ascending by length, into runs. The documents of a run are padded to its longest
// class. Dynamic programming finds the cheapest division. A run is identified by its last class.
std::vector<std::size_t> cheapest_runs(const AttentionShape& shape,
                                       const std::vector<Class>& classes, int64_t launches) {
  struct Best {
    int64_t cost = std::numeric_limits<int64_t>::max();
    std::size_t first = 0;
  };
  std::vector<Best> best(classes.size() + 1); // best division of the classes before this one
  best[0].cost = 0;
  for (std::size_t end = 1; end <= classes.size(); ++end) {
    const int length = classes[end - 1].length;
    int64_t count = 0;
    for (std::size_t first = end; first-- > 0;) {
      if (classes[first].kernels != classes[end - 1].kernels) break;
      count += static_cast<int64_t>(classes[first].documents.size());
      const int64_t most = most_sequences(shape, length);
      const int64_t copied = count == 1 ? 0 : kCopiedToken * length;
      const int64_t cost = best[first].cost + launches * ((count + most - 1) / most) +
                           count * (computed(length) + copied);
      if (cost < best[end].cost) best[end] = {cost, first};
    }
  }
  std::vector<std::size_t> last;
  for (std::size_t end = classes.size(); end > 0; end = best[end].first)
    last.push_back(end - 1);
  return last; // the longest documents come first
}

void append(DocumentPlan& plan, DocumentBatch batch) {
  batch.token_begin = plan.tokens;
  batch.compressed_begin = plan.compressed;
  const auto count = static_cast<int64_t>(batch.documents.size());
  plan.tokens += count * batch.length;
  plan.compressed += count * compressed_count(batch.length);
  plan.batches.push_back(std::move(batch));
}

// Adds batches of documents that are copied, or of a single document in place.
DocumentPlan with_classes(const AttentionShape& shape, DocumentPlan plan,
                          const std::vector<Class>& classes, int64_t launches) {
  std::size_t end = classes.size();
  const std::vector<std::size_t> runs = cheapest_runs(shape, classes, launches);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t first = i + 1 < runs.size() ? runs[i + 1] + 1 : 0;
    std::vector<Document> all;
    for (std::size_t c = first; c < end; ++c)
      all.insert(all.end(), classes[c].documents.begin(), classes[c].documents.end());
    end = first;
    const auto most = static_cast<std::size_t>(most_sequences(shape, classes[runs[i]].length));
    for (std::size_t begin = 0; begin < all.size(); begin += most) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto to = from + static_cast<std::ptrdiff_t>(std::min(most, all.size() - begin));
      const bool one = to - from == 1;
      append(plan, {.length = one ? from->length : classes[runs[i]].length,
                    .documents = {from, to},
                    .in_place = one});
    }
  }
  return plan;
}

} // namespace

int class_length(int length) {
  if (length <= 8) return length;
  const int step = static_cast<int>(std::bit_floor(static_cast<unsigned>(length - 1))) / 4;
  return (length + step - 1) / step * step;
}

DocumentPlan plan_rows(const AttentionShape& shape) {
  DocumentBatch batch = {.length = shape.sequence};
  for (int row = 0; row < shape.batch; ++row)
    batch.documents.push_back({.row = row, .length = shape.sequence});
  DocumentPlan plan;
  append(plan, std::move(batch));
  return plan;
}

DocumentPlan plan_documents(const AttentionShape& shape, const FusedTuning& tuning,
                            std::span<const Document> documents, Batching batching,
                            int launch_tokens) {
  const int64_t price = launch_tokens * kToken;
  DocumentPlan in_place;
  if (batching == Batching::kOneByOne) {
    for (const Document& document : documents)
      append(in_place, {.length = document.length, .documents = {document}});
    return in_place;
  }
  // Neighbouring whole rows stay in place if that saves more than their launches cost.
  std::map<int, std::vector<Document>> by_length;
  int64_t tokens = 0;
  for (std::size_t i = 0; i < documents.size();) {
    std::size_t end = i;
    while (end < documents.size() && documents[end].length == shape.sequence)
      ++end;
    const auto whole = static_cast<int64_t>(end - i);
    if (end > i &&
        (end - i == documents.size() || whole * shape.sequence * kCopiedToken >= price)) {
      append(in_place, {.length = shape.sequence,
                        .documents = {documents.begin() + static_cast<std::ptrdiff_t>(i),
                                      documents.begin() + static_cast<std::ptrdiff_t>(end)}});
      i = end;
      continue;
    }
    for (end = std::max(end, i + 1); i < end; ++i) {
      // The length is at most that of the sequence, because kernels that support the sequence
      // support every document of it.
      int length = std::min(class_length(documents[i].length), shape.sequence);
      const int kernels = kernels_of(shape, tuning, documents[i].length);
      while (kernels_of(shape, tuning, length) != kernels)
        --length;
      by_length[length].push_back(documents[i]);
      tokens += documents[i].length;
    }
  }
  std::vector<Class> classes;
  for (auto& [length, all] : by_length)
    classes.push_back({length, kernels_of(shape, tuning, length), std::move(all)});
  // If launches are free, every document uses its own class.
  const double most = static_cast<double>(in_place.tokens + kFreeFilling) +
                      kMostFilling * static_cast<double>(tokens);
  for (int64_t launches = price;; launches /= 2) {
    DocumentPlan plan = with_classes(shape, in_place, classes, launches);
    if (launches == 0 || static_cast<double>(plan.tokens) <= most) return plan;
  }
}

} // namespace nsa::kernels
