#include "bench/kernels/document_times.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "bench/kernel_cases/packed_case.h"
#include "bench/kernels/timing.h"

namespace nsa::kernels::check {
namespace {

std::vector<Document> drawn(const AttentionShape& shape, double low, double high) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(std::log2(low), std::log2(high));
  std::vector<Document> documents;
  for (int row = 0; row < shape.batch; ++row) {
    int compressed = 0;
    for (int begin = 0; begin < shape.sequence;) {
      const int length =
          std::min(static_cast<int>(std::exp2(exponent(random))), shape.sequence - begin);
      documents.push_back({row, begin, length, compressed});
      begin += length;
      compressed += compressed_count(length);
    }
  }
  return documents;
}

// Milliseconds that the host needs to enqueue a forward and a backward on an idle device.
double host_milliseconds(PackedCase& c) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    cuda_check(cudaDeviceSynchronize(), "wait");
    const auto start = Clock::now();
    c.forward();
    c.backward();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double time_plan(const DocumentsOptions& options, DocumentPlan plan, const char* name) {
  const auto batches = plan.batches.size();
  const auto tokens = static_cast<long long>(plan.tokens);
  PackedCase c(options, std::move(plan));
  const Timing forward = time_of([&] { c.forward(); }, 10);
  const Timing backward = time_of([&] { c.backward(); }, 10);
  std::printf("  %-28s %4zu batches %7lld tokens | %7.3f (%.3f-%.3f) | %7.3f (%.3f-%.3f) | sum "
              "%7.3f | host %7.3f | workspace %.0f MiB\n",
              name, batches, tokens, forward.median, forward.low, forward.high, backward.median,
              backward.low, backward.high, forward.median + backward.median, host_milliseconds(c),
              static_cast<double>(c.attention.workspace.size()) / 1048576.0);
  std::fflush(stdout);
  return forward.median + backward.median;
}

// Times each batch of a plan separately, and sequences of the same sizes without copies.
void time_batches(const DocumentsOptions& options, const DocumentPlan& plan) {
  for (const DocumentBatch& batch : plan.batches) {
    DocumentPlan one;
    one.batches = {batch};
    one.batches[0].token_begin = one.batches[0].compressed_begin = 0;
    const auto count = static_cast<int64_t>(batch.documents.size());
    one.tokens = count * batch.length;
    one.compressed = count * compressed_count(batch.length);
    PackedCase c(options, one);
    CaseOptions plain = options.attention;
    plain.shape = batch.shape(plain.shape);
    AttentionCase without(plain);
    const auto sum = [](auto& problem) {
      return time_of([&] { problem.forward(); }, 10).median +
             time_of([&] { problem.backward(); }, 10).median;
    };
    const double copied = sum(c);
    const double bare = sum(without);
    std::printf("    %4lld of %5d tokens%s: %.3f ms, without copies %.3f (%.1f ns a token)\n",
                static_cast<long long>(count), batch.length, batch.in_place ? " in place" : "",
                copied, bare, 1e6 * bare / static_cast<double>(one.tokens));
    std::fflush(stdout);
  }
}

} // namespace

void time_documents(int tokens, const CaseOptions& options) {
  constexpr int kRow = 2048;
  struct Mix {
    const char* name;
    double low, high;
  };
  constexpr Mix kMixes[] = {{"16 to 2048", 16, 2048},
                            {"256 to 2048", 256, 2048},
                            {"16 to 128", 16, 128},
                            {"whole rows", kRow, kRow + 1}};
  for (const Mix& mix : kMixes) {
    DocumentsOptions packed;
    packed.attention = options;
    packed.attention.shape.batch = std::max(1, tokens / kRow);
    packed.attention.shape.sequence = kRow;
    const AttentionShape& shape = packed.attention.shape;
    packed.documents = drawn(shape, mix.low, mix.high);
    std::printf("%d tokens in rows of %d, %zu documents of %s tokens; forward | backward, ms\n",
                shape.batch * kRow, kRow, packed.documents.size(), mix.name);
    const DocumentPlan batched = plan_documents(shape, options.tuning, packed.documents);
    const double together = time_plan(packed, batched, "batched");
    const double alone = time_plan(
        packed, plan_documents(shape, options.tuning, packed.documents, Batching::kOneByOne),
        "one by one");
    std::printf("  one by one takes %.2f times as long\n", alone / together);
    if (&mix != kMixes) continue;
    for (const int price : {256, 512, 1024, 4096, 8192}) {
      const std::string name = "batched, launches as " + std::to_string(price);
      time_plan(packed,
                plan_documents(shape, options.tuning, packed.documents, Batching::kByLength, price),
                name.c_str());
    }
    time_batches(packed, batched);
  }
}

} // namespace nsa::kernels::check
