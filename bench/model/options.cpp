#include "bench/model/options.h"

#include "bench/arguments/arguments.h"
#include "common/base/file.h"
#include "common/spec/parse.h"

#include <algorithm>
#include <cstdio>

namespace nsa::bench {

namespace {

constexpr const char* kSaveExample =
    "--attention nsa --sequence 8192 --steps 200 --row-seconds 60 --data DATA --save-attention "
    "layer.pt";

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(2);
}

bool sets(const Options& options, std::string_view key) {
  return std::any_of(options.overrides.begin(), options.overrides.end(),
                     [&](const std::string& given) { return given.starts_with(key); });
}

void check(const Options& options) {
  if (sets(options, "parallel.ranks")) stop("--set parallel.ranks starts no ranks: use --ranks N");
  if (options.warm_up < (options.graphs == std::vector{Graphs::kOff} ? 1 : 4))
    stop("--warm-up: at least 1 step, and 4 with --graphs on, whose third step is recorded");
  if (options.initial_values && options.ranks > 1)
    stop("--initial-values are drawn by one process: leave --ranks out");
}

} // namespace

Options parse_options(int argc, char** argv) {
  Options o;
  std::vector<int64_t> layer;
  const CommandLine command{
      "nsa-bench model",
      "Training steps of the whole model on this machine, as the worker makes them, without a "
      "daemon:\n"
      "random tokens; loss, backward, gradient buffers, AdamW. Without options the M7C 125M on a "
      "GPU,\n"
      "NSA and its dense twin at 1,024 to 65,536 tokens a sequence, 32,768 tokens a micro-batch.",
      "",
      {{"--attention", "nsa,dense", "which models; both", into(o.attention)},
       {"--sequence", "N,...", "lengths; 1,024 to 65,536", into(o.sequences)},
       {"--tokens", "N", "of a rank's micro-batch, one sequence at least; 32,768", into(o.tokens)},
       {"--ranks", "N",
        "processes that share each step as the ranks of a run do, on a GPU each or on this CPU; 1",
        into(o.ranks)},
       {"--layers", "auto,...",
        "what computes norms, rotation and loss: auto (what the worker would take), composed, "
        "fused",
        into(o.layers)},
       {"--graphs", "off,on",
        "whether forward and backward are replayed as CUDA graphs; off,on: a row each, one after "
        "the other",
        into(o.graphs)},
       {"--set", "KEY=VALUE",
        "a key of the run file, as often as needed; data.document_mask=true without --data: "
        "documents of 16 to 2,047 tokens",
        behind(o.overrides)},
       {"--run-file", "FILE", "a run file to start from", into(o.run_file)},
       {"--steps", "N", "of a row, after those to warm up; 20", into(o.steps)},
       {"--warm-up", "N", "steps of a row that are not counted; 4, which --graphs on needs",
        into(o.warm_up)},
       {"--row-seconds", "S", "fewer steps, but five, where they take longer; 5",
        into(o.row_seconds)},
       {"--seconds", "S", "rows that would begin later are left out; 300", into(o.seconds)},
       {"--parts", "", "times of parts by themselves as well", into(o.parts)},
       {"--initial-values", "", "only what drawing them takes", into(o.initial_values)},
       {"--json", "", "an object a line, the machine first", into(o.json)},
       {"--trace", "FILE", "two further steps of the last row on rank 0, in Chrome's format",
        into(o.trace)},
       {"--data", "FOLDER",
        "train on a prepared data set instead of random tokens, in the order of a run",
        into(o.data)},
       {"--checkpoint", "FOLDER", "begin with the weights of a checkpoint", into(o.checkpoint)},
       {"--save-attention", "FILE",
        "what a layer of the last row with NSA attends with, on held-out text after the steps",
        into(o.save_attention)},
       {"--save-layer", "N", "which layer, from 1; the middle one", into(layer)}},
      {"", "--json > table.jsonl", "--attention nsa --sequence 8192 --parts",
       "--ranks 2 --attention nsa --sequence 8192 --set parallel.compress=bf16",
       "--sequence 128 --tokens 256 --set model.layers=2 --set parallel.device=cpu", kSaveExample}};
  read_or_exit(command, argc, argv);
  o.sizes_given = !o.overrides.empty() || !o.run_file.empty();
  if (!layer.empty()) o.save_layer = layer.front() - 1;
  check(o);
  return o;
}

spec::RunSpec spec_of(const Options& options, spec::Attention attention, int64_t sequence,
                      bool gpu) {
  std::string text = "schema = 1\n";
  if (!options.run_file.empty()) {
    const auto read = read_file(options.run_file);
    if (!read) stop(read.error().what);
    text = *read;
  }
  std::vector<std::string> overrides{
      "train.steps=1",
      "model.attention=" + text_of(attention),
      "train.global_batch=0",
      "parallel.ranks=" + std::to_string(options.ranks),
      "train.sequence_length=" + std::to_string(sequence),
      "train.micro_batch=" + std::to_string(std::max<int64_t>(1, options.tokens / sequence))};
  if (options.run_file.empty()) overrides.emplace_back("data.path=none");
  // The kernels are required here, because a table made with a fallback would look like slow fused
  // kernels.
  if (gpu && attention == spec::Attention::kNsa && options.run_file.empty() &&
      !sets(options, "toggles.attention.kernels"))
    overrides.emplace_back("toggles.attention.kernels=fused");
  for (const std::string& given : options.overrides)
    if (attention == spec::Attention::kNsa || !given.starts_with("toggles.attention.kernels"))
      overrides.push_back(given);
  const spec::Parsed parsed = spec::parse_run_file(
      text, options.run_file.empty() ? "bench.toml" : options.run_file, overrides);
  if (!parsed.problems.empty()) stop(spec::format_problem(parsed.problems.front()));
  return parsed.spec;
}

} // namespace nsa::bench
