#include "tests/gpu/kernels/cases.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/kernels/attention_checks.h"
#include "tests/gpu/kernels/compressed_backward_case.h"
#include "tests/gpu/kernels/documents_case.h"
#include "tests/gpu/kernels/layer_case.h"
#include "tests/gpu/kernels/rerun_checks.h"

namespace nsa::kernels::check {
namespace {

struct Case {
  std::string name;
  std::function<bool()> run;
};

// Changes of a case's options.
constexpr auto as_it_is = [](CaseOptions&) {};
constexpr auto portable = [](CaseOptions& options) {
  options.tuning.family = KernelFamily::kPortable;
};
auto with(Selection selection) {
  return [=](CaseOptions& options) { options.selection = selection; };
}
auto query_major(int tokens) {
  return [=](CaseOptions& options) { options.tuning.query_major_tokens = tokens; };
}
constexpr auto one_backward_kernel = [](CaseOptions& options) {
  options.tuning.compressed_backward_from = 1;
};
constexpr auto as_packed = [](DocumentsOptions&) {};

class CaseList {
public:
  explicit CaseList(const CheckOptions& options) : wanted(options) {}
  // The most important cases come first: they run until the time is over.
  std::vector<Case> make() {
    lists_and_first_tokens();
    compressed_backward();
    units_beside();
    causal();
    heads_and_dimensions();
    documents();
    future_tokens();
    hard_inputs();
    sizes();
    by_the_reference();
    random_shapes();
    return std::move(cases);
  }

private:
  void lists_and_first_tokens();
  void compressed_backward();
  void units_beside();
  void causal();
  void heads_and_dimensions();
  void wide_heads();
  void documents();
  void future_tokens();
  void hard_inputs();
  void sizes();
  void by_the_reference();
  void random_shapes();

  // Options as the command line asks for them.
  CaseOptions options_of(const AttentionShape& shape) const {
    CaseOptions options;
    options.shape = shape;
    options.tuning.family = family_of(shape, wanted.portable);
    return options;
  }
  template <typename Change>
  void add(const std::string& name, const AttentionShape& shape, Change change) {
    CaseOptions options = options_of(shape);
    options.seed = static_cast<uint64_t>(shape.sequence) + 1;
    change(options);
    cases.push_back({name, [=] { return run_case(name, options); }});
  }
  template <typename Change> void add_claimed(const AttentionShape& shape, Change change) {
    CaseOptions options = options_of(shape);
    change(options);
    cases.push_back({"claimed units", [=] { return run_claims_case(options); }});
  }
  void add_causal(const AttentionShape& shape, float query_deviation = 1.0f) {
    if (family_of(shape, wanted.portable) != KernelFamily::kHopper) return;
    CaseOptions options;
    options.shape = shape;
    options.seed = static_cast<uint64_t>(shape.sequence) + 2;
    options.query_deviation = query_deviation;
    cases.push_back({"causal over everything", [=] { return run_causal_case(options); }});
  }
  template <typename Change>
  void add_documents(const AttentionShape& shape, const std::vector<int>& lengths, bool by_portable,
                     Change change) {
    DocumentsOptions options;
    options.attention = options_of(shape);
    options.attention.tuning.family = family_of(shape, by_portable);
    options.documents = documents_of(shape, lengths);
    change(options);
    const std::string name =
        "packed documents" + std::string(options.compressed_given ? ", compressed keys given" : "");
    cases.push_back({name, [=] { return run_documents_case(name, options); }});
  }
  void add_future(const AttentionShape& shape, bool by_portable, int first_tokens = 0) {
    CaseOptions options;
    options.shape = shape;
    options.tuning.family = family_of(shape, by_portable);
    options.tuning.query_major_tokens = first_tokens;
    cases.push_back({"future tokens", [=] { return run_future_case(options); }});
  }

  CheckOptions wanted;
  std::vector<Case> cases;
};

void CaseList::lists_and_first_tokens() {
  add("scored", {2, 2048, 2}, as_it_is);
  add("lists from 1024 on", {2, 2300, 2}, query_major(kDenseFirstTokens));
  // Rows in which one key has all or nearly all of the probability.
  for (const float deviation : {12.0f, 40.0f, 3000.0f}) {
    add("lists, query deviation " + std::to_string(static_cast<int>(deviation)), {1, 2300, 2},
        [=](CaseOptions& options) {
          options.tuning.query_major_tokens = kDenseFirstTokens;
          options.query_deviation = deviation;
        });
  }
  add("joint dQ", {2, 2300, 2}, as_it_is);
  add("joint dQ", {1, 1300, 1, 16}, as_it_is);
  add("joint dQ", {1, 1300, 2, 1}, as_it_is);
  add("joint dQ", {2, 1100, 2, 5}, as_it_is);
  for (const int sequence : {1, 20, 31, 47, 64, 127, 333, 3001})
    add("joint dQ", {2, sequence, 2}, as_it_is);
  add("joint dQ, gates of zero", {1, 1200, 2},
      [](CaseOptions& options) { options.zero_gates = true; });
  add("joint dQ, sharp", {1, 1200, 2},
      [](CaseOptions& options) { options.query_deviation = 3000.0f; });
  CaseOptions graph;
  graph.shape = {2, 2300, 2};
  graph.tuning.family = family_of(graph.shape, wanted.portable);
  graph.tuning.query_major_tokens = kDenseFirstTokens;
  cases.push_back({"graph, window beside sums",
                   [=] { return run_graph_case("graph, window beside sums", graph); }});
}

// One kernel for dQ, dK and dV of the compressed branch, at lengths that would have two.
void CaseList::compressed_backward() {
  const std::string name = "one compressed backward";
  const auto add_one = [&](const std::string& what, const AttentionShape& shape, auto change) {
    if (family_of(shape, wanted.portable) != KernelFamily::kHopper) return;
    add(name + what, shape, [=](CaseOptions& options) {
      one_backward_kernel(options);
      change(options);
    });
  };
  add_one("", {2, 2300, 2}, as_it_is);
  for (const int sequence : {31, 32, 33, 47, 48, 64, 127, 333, 1024, 2063, 2079, 3001})
    add_one("", {2, sequence, 2}, as_it_is);
  add_one(", two launches", {24, 17000, 1}, as_it_is);
  add_one(", bands", {1, 36000, 1}, as_it_is);
  for (const float deviation : {12.0f, 3000.0f})
    add_one(", sharp", {1, 2300, 2},
            [=](CaseOptions& options) { options.query_deviation = deviation; });
  add_one(", all equal", {1, 2048, 2}, [](CaseOptions& options) { options.key_deviation = 0.0f; });
  add_one(", gates of zero", {1, 1200, 2}, [](CaseOptions& options) { options.zero_gates = true; });
  add_one(", large gates", {1, 1200, 2},
          [](CaseOptions& options) { options.gate_scale = 1000.0f; });
  for (const float deviation : {1e-30f, 1e-20f, 1e15f})
    add_one(", gradient's size", {1, 1200, 2},
            [=](CaseOptions& options) { options.gradient_deviation = deviation; });
  add_one(", alone", {2, 2300, 2}, [](CaseOptions& options) {
    options = part_of(options, 2);
    one_backward_kernel(options);
  });
  for (const int off : {1, 2})
    add_one(", branch off", {1, 2300, 2},
            [=](CaseOptions& options) { options.branch_on[off] = false; });
  CaseOptions invalid = options_of({2, 4500, 2});
  if (invalid.tuning.family != KernelFamily::kHopper) return;
  one_backward_kernel(invalid);
  invalid = part_of(invalid, 2);
  cases.push_back({name + ", invalid values", [=] { return run_invalid_case(invalid); }});
  cases.push_back({name + ", future tokens", [=] { return run_future_gradient_case(invalid); }});
  CaseOptions graph = options_of({2, 2300, 2});
  one_backward_kernel(graph);
  cases.push_back({name + ", graph", [=] { return run_graph_case(name + ", graph", graph); }});
}

void CaseList::units_beside() {
  // Here first tokens run beside lists and sums, or no other branch is added to the gradients.
  for (const AttentionShape& shape :
       {AttentionShape{2, 4100, 2}, AttentionShape{5, 14000, 1}, AttentionShape{1, 3300, 2, 5},
        AttentionShape{2, 2300, 2}, AttentionShape{1, 1000, 2}}) {
    for (int part = 1; part <= kBranches; ++part) {
      if (part > 1 && shape.sequence != 2300) continue;
      add("branch alone", shape, [=](CaseOptions& options) { options = part_of(options, part); });
    }
  }
  // The first tokens' dK and dV of some KV heads run beside only the sum of dQ.
  add("window off", {4, 2048, 2}, [](CaseOptions& options) { options.branch_on[2] = false; });
  add("first tokens beside lists", {2, 2300, 2}, as_it_is);
  add("first tokens beside, window off", {1, 4100, 2},
      [](CaseOptions& options) { options.branch_on[2] = false; });
  add_claimed({2, 2300, 2}, query_major(kDenseFirstTokens));
  add_claimed({1, 1025, 1}, query_major(kDenseFirstTokens)); // fewer units than CTAs
  add_claimed({1, 1, 1}, with(Selection::kSomeEmpty));       // no units
  add_claimed({1, 4096, 2}, with(Selection::kHotBlock));     // long lists
  add_claimed({5, 14000, 1}, as_it_is);                      // two rounds
  for (const int heads : {1, 5, 16})
    add_claimed({1, 1300, 2, heads}, query_major(kDenseFirstTokens));
  add("window beside sums", {2, 2300, 2}, as_it_is);
  add("window beside sums", {1, 1100, 3, 5}, as_it_is);
  add("window beside sums, two rounds", {5, 14000, 1}, as_it_is);
  add("window beside sums, compressed branch off", {1, 1300, 2}, [](CaseOptions& options) {
    options.branch_on[0] = false;
    options.selection = Selection::kRandom; // no branch scores the blocks
  });
}

void CaseList::causal() {
  for (const int sequence : {300, 2300, 4100})
    add_causal({2, sequence, 2});
  add_causal({1, 9100, 1});
  for (const int sequence : {1, 31, 63, 64, 65, 127, 1000})
    add_causal({2, sequence, 2});
  for (const int heads : {1, 4, 5, 7, 16})
    add_causal({1, 1300, 2, heads});
  for (const float deviation : {12.0f, 3000.0f})
    add_causal({1, 1200, 2}, deviation);
  add_causal({8, 4200, 1});     // rounds of KV heads
  add_causal({1, 33400, 1, 2}); // bands of tokens
  // Pairs of columns on 132 multiprocessors.
  add_causal({8, 4096, 1});
  add_causal({33, 1000, 1, 5});
  add("pairs of columns", {33, 1000, 1}, as_it_is);
  add("pairs of columns", {33, 900, 1, 5}, as_it_is);
  add("pairs of columns, blocks masked", {26, 1200, 1}, as_it_is);
}

void CaseList::heads_and_dimensions() {
  add("scored", {1, 2048, 2, 6, 128}, as_it_is);
  add("scored by portable kernels", {1, 2048, 2}, portable);
  add("blocks masked to 2048", {1, 2300, 2}, query_major(2048));
  add("four heads", {1, 1500, 2, 4}, as_it_is);
  add("five heads", {1, 1300, 1, 5}, as_it_is);
  add("sixteen heads", {1, 1300, 1, 16}, as_it_is);
  add("one head", {1, 1300, 2, 1}, as_it_is);
  for (const int heads : {1, 4, 5, 16})
    add("128 dimensions", {1, 1300, 2, heads, 128}, as_it_is);
  add("five heads by portable kernels", {1, 1300, 1, 5}, portable);
  add("128 dimensions, hot blocks", {1, 4096, 1, 6, 128}, with(Selection::kHotBlock));
  wide_heads();
}

// The same checks with heads of 128 dimensions. They have other tiles and no packed results.
void CaseList::wide_heads() {
  const std::string name = "128 dimensions";
  add(name + ", portable", {1, 2048, 2, 6, 128}, portable);
  for (const int sequence : {1, 20, 31, 47, 64, 127, 333, 1025, 3001})
    add(name, {2, sequence, 2, 6, 128}, as_it_is);
  for (const float deviation : {1.0f, 12.0f, 3000.0f}) {
    add(name + ", lists, query deviation " + std::to_string(static_cast<int>(deviation)),
        {1, 2300, 2, 6, 128}, [=](CaseOptions& options) {
          options.tuning.query_major_tokens = kDenseFirstTokens;
          options.query_deviation = deviation;
        });
  }
  add(name + ", masked to 2048", {1, 2300, 2, 6, 128}, query_major(2048));
  add(name + ", all equal", {1, 2048, 2, 6, 128},
      [](CaseOptions& options) { options.key_deviation = 0.0f; });
  add(name + ", gates of zero", {1, 1200, 2, 6, 128},
      [](CaseOptions& options) { options.zero_gates = true; });
  for (int part = 1; part <= kBranches; ++part) {
    for (const int heads : {6, 5})
      add(name + ", branch alone", {2, 2300, 2, heads, 128},
          [=](CaseOptions& options) { options = part_of(options, part); });
  }
  add(name + ", window off", {1, 4100, 2, 6, 128},
      [](CaseOptions& options) { options.branch_on[2] = false; });
  for (const int heads : {6, 5})
    add_claimed({1, 1300, 2, heads, 128}, query_major(kDenseFirstTokens));
  add(name + ", pairs of columns", {33, 1000, 1, 6, 128}, as_it_is);
  add(name + ", pairs of columns", {33, 900, 1, 5, 128}, as_it_is);
  add(name + ", two rounds", {3, 14000, 1, 6, 128}, as_it_is);
}

void CaseList::documents() {
  const auto compressed_given = [](DocumentsOptions& options) { options.compressed_given = true; };
  const std::vector<int> few = {700, 1, 20, 1300, 979};
  const std::vector<int> many = {40, 33, 1,   700, 64, 31, 5,    90, 1000, 150,
                                 63, 65, 300, 2,   16, 47, 1025, 32, 520,  260};
  for (const bool portable : {false, true}) {
    const bool by_portable = portable || wanted.portable;
    add_documents({2, 3000, 2}, few, by_portable, as_packed);
    add_documents({2, 4800, 2}, many, by_portable, as_packed);
    add_documents({2, 4800, 2}, many, by_portable, compressed_given);
    add_documents({2, 2500, 2, 5}, many, by_portable, [](DocumentsOptions& options) {
      options.attention.selection = Selection::kRandom; // the blocks are given
    });
  }
  for (int off = 0; off < kBranches; ++off) {
    add_documents({1, 2500, 2}, many, wanted.portable, [=](DocumentsOptions& options) {
      options.attention.branch_on[off] = false;
      if (off == 0) options.attention.selection = Selection::kRandom;
    });
  }
  add_documents({2, 5500, 1}, {2049, 2600, 840}, wanted.portable, as_packed); // with lists
  add_documents({1, 150, 2}, {1}, wanted.portable, as_packed);
  if (family_of({1, 4800, 2}, wanted.portable) == KernelFamily::kHopper) {
    add_documents({2, 4800, 2}, many, false, [](DocumentsOptions& options) {
      options.compressed_given = true; // one compressed backward without pooling
      options.attention.tuning.compressed_backward_from = 1;
    });
  }
  for (const bool portable : {false, true})
    add_documents({2, 3000, 2, 3, 128}, few, portable || wanted.portable, as_packed);
  add_documents({2, 5500, 1, 6, 128}, {2049, 2600, 840}, wanted.portable, as_packed); // with lists
}

void CaseList::future_tokens() {
  for (const bool portable : {false, true}) {
    for (const int sequence : {300, 1900, 4100, 9100})
      add_future({1, sequence, 2}, portable || wanted.portable);
    for (const int heads : {1, 4, 5, 16})
      add_future({1, 1900, 2, heads}, portable || wanted.portable);
  }
  add_future({1, 1900, 2}, wanted.portable, kDenseFirstTokens); // with lists
  for (const bool portable : {false, true})
    add_future({1, 1900, 1, 6, 128}, portable || wanted.portable);
  add_future({1, 1900, 1, 6, 128}, wanted.portable, kDenseFirstTokens);
}

void CaseList::hard_inputs() {
  add("hot blocks", {1, 4096, 2}, with(Selection::kHotBlock));
  add("odd", {3, 333, 2}, as_it_is);
  add("one token", {1, 1, 2}, as_it_is);
  cases.push_back({"kernels around attention", [] { return check_layer_kernels() == 0; }});
  add("blocks masked to 1500", {2, 1700, 1}, query_major(1500));
  add("sharp", {1, 2048, 2}, [](CaseOptions& options) { options.query_deviation = 12.0f; });
  add("huge", {1, 1200, 2}, [](CaseOptions& options) { options.query_deviation = 3000.0f; });
  add("huge lists", {1, 1200, 2}, [](CaseOptions& options) {
    options.tuning.query_major_tokens = kDenseFirstTokens;
    options.query_deviation = 3000.0f;
  });
  add("all equal", {1, 2048, 2}, [](CaseOptions& options) { options.key_deviation = 0.0f; });
  add("gates of zero", {1, 1200, 2}, [](CaseOptions& options) { options.zero_gates = true; });
  add("seven heads, random blocks", {2, 700, 2, 7}, with(Selection::kRandom));
  add("twelve heads, hot blocks", {1, 1100, 1, 12}, with(Selection::kHotBlock));
  add("random blocks", {2, 1500, 2}, with(Selection::kRandom));
  for (const auto& [name, selection] : {std::pair{"given rows empty", Selection::kSomeEmpty},
                                        {"given first slots empty", Selection::kFirstSlotsEmpty},
                                        {"given blocks doubled", Selection::kDoubled},
                                        {"given blocks to come", Selection::kFuture},
                                        {"given blocks out of range", Selection::kOutOfRange},
                                        {"given in any order", Selection::kAnyOrder}}) {
    add(name, {1, 1500, 2}, with(selection));
    add(name, {2, 1100, 1, 5, 128}, with(selection));
    add(name, {1, 1300, 2, 4}, [=](CaseOptions& options) {
      options.selection = selection;
      portable(options);
    });
  }
}

void CaseList::sizes() {
  add("odd scored", {1, 3001, 2}, as_it_is);
  add("no compressed token", {2, 31, 2}, as_it_is);
  add("one compressed token", {1, 47, 2}, as_it_is);
  add("one block over dense", {1, 1025, 1}, as_it_is);
  add("longer units", {1, 36000, 1}, as_it_is);
  add("two rounds", {5, 14000, 1}, as_it_is);
  for (int off = 0; off < kBranches; ++off) {
    add("branch off", {1, 1300, 2}, [=](CaseOptions& options) {
      options.branch_on[off] = false;
      if (off == 0) options.selection = Selection::kRandom; // no branch scores the blocks
    });
  }
  for (const int heads : {2, 3, 8, 9, 10, 11, 13, 14, 15})
    add("heads", {1, 1300, 1, heads}, as_it_is);
  add("no compressed token", {1, 20, 2, 11}, as_it_is);
}

void CaseList::by_the_reference() {
  CaseOptions small;
  small.shape = {1, 1101, 1};
  small.tuning.family = family_of(small.shape, wanted.portable);
  cases.push_back(
      {"scored by the CPU oracle", [=] { return run_reference_case("scored", small); }});
  small.shape = {2, 210, 2};
  small.selection = Selection::kRandom;
  cases.push_back({"random blocks by the CPU oracle",
                   [=] { return run_reference_case("random blocks", small); }});
  CaseOptions doubled = small;
  doubled.selection = Selection::kDoubled;
  cases.push_back({"given blocks doubled by the CPU oracle",
                   [=] { return run_reference_case("given blocks doubled", doubled); }});
  small.shape.heads = 3;
  cases.push_back(
      {"three heads by the CPU oracle", [=] { return run_reference_case("three heads", small); }});
  small.shape.head_dim = 128;
  small.tuning.family = family_of(small.shape, wanted.portable);
  cases.push_back({"128 dimensions by the CPU oracle",
                   [=] { return run_reference_case("128 dimensions", small); }});
}

void CaseList::random_shapes() {
  // Random shapes, which are the same in every run.
  std::mt19937 random(20);
  // Six for Hopper's kernels, six for portable ones, three with wide heads.
  for (int i = 0; i < 15; ++i) {
    const AttentionShape shape = {
        1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 1800),
        1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % kMostHeads),
        i < 6 || (i < 12 && i % 2 == 0) ? 64 : 128};
    const Selection selection = random() % 2 == 0 ? Selection::kScored : Selection::kHotBlock;
    add("random shape and heads", shape, [=](CaseOptions& options) {
      options.selection = selection;
      if (i >= 6 && i < 12) portable(options);
    });
  }
}

} // namespace

int check_all(const CheckOptions& wanted) {
  std::vector<Case> cases = CaseList(wanted).make();
  std::erase_if(cases, [&](const Case& c) {
    return c.name.find(wanted.match) == std::string::npos ||
           (!wanted.without.empty() && c.name.find(wanted.without) != std::string::npos);
  });
  if (cases.empty()) {
    std::printf("no case has such a name\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(wanted.seconds);
  std::size_t run = 0;
  int failed = 0;
  for (; run < cases.size() && std::chrono::steady_clock::now() - start < limit; ++run)
    failed += cases[run].run() ? 0 : 1;
  std::printf("%s: %zu of %zu cases run, %d failed\n", failed == 0 ? "ALL GOOD" : "FAILURES", run,
              cases.size(), failed);
  return failed == 0 ? 0 : 1;
}

} // namespace nsa::kernels::check
