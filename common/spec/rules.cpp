#include "common/spec/rules.h"

#include "common/base/printable.h"
#include "common/base/text.h"
#include "common/spec/branches.h"
#include "common/spec/fault_table.h"
#include "common/spec/gate.h"
#include "common/spec/kernel_request.h"
#include "common/spec/ladder_rules.h"
#include "common/spec/mixture.h"
#include "common/spec/origin.h"
#include "common/spec/parse.h"
#include "common/spec/passed_variables.h"
#include "common/spec/toggles.h"
#include "common/spec/worker_toggles.h"

#include <algorithm>
#include <cctype>
#include <tuple>

namespace nsa::spec {

namespace {

// Variables that nsad sets for a rank; a second source would conflict silently.
constexpr std::string_view kOwnVariables[] = {
    "RANK",        "WORLD_SIZE",           "LOCAL_RANK",      "MASTER_ADDR",
    "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"};

std::string number(int64_t value) {
  return std::to_string(value);
}

bool is_variable_name(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

const Toggle* toggle_of_variable(std::string_view name) {
  for (const Toggle& toggle : toggle_registry())
    if (toggle.variable == name) return &toggle;
  return nullptr;
}

// Returns the number by which a rank's sequences are multiplied.
std::string data_ranks_text(const RunSpec& spec) {
  return spec.parallel.context_ranks > 1 ? "parallel.ranks / parallel.context_ranks"
                                         : "parallel.ranks";
}

class Rules {
public:
  Rules(const RunSpec& spec, Reading& reading) : s_(spec), reading_(reading) {}

  void all() {
    shown_texts();
    origin();
    model();
    nsa();
    train();
    placement();
    supervision();
    followed_data();
    check_sources(s_, reading_);
    check_gates(s_, reading_);
    check_ladder(s_, reading_);
    inject();
    environment();
  }

private:
  // `broken` is called only if every field is valid, so it may divide by them.
  template <class Broken>
  void rule(const std::vector<std::string>& keys, const Broken& broken, const std::string& what,
            const std::string& next = {}) {
    for (const std::string& key : keys)
      if (reading_.bad_keys.count(key)) return;
    if (broken()) add_rule_problem(reading_, keys, {what, next});
  }

  // Names, notes and tags are printed on terminals and in tables, one line each.
  void shown_texts() {
    rule(
        {"run.name"}, [&] { return !s_.run.name.empty() && !is_run_name(s_.run.name); },
        "\"" + printable(s_.run.name) + "\" is not a valid name of a run",
        "a name has letters, digits, '.', '-' and '_', 64 at most: \"" + run_name_of(s_.run.name) +
            "\"");
    const auto shows = [](const std::string& text) {
      return printable(text) == text && text.find('\t') == std::string::npos;
    };
    const std::string what = "holds a line break or another control character";
    const std::string next = "write it as one line of printable characters";
    rule({"run.note"}, [&] { return !shows(s_.run.note); }, what, next);
    rule(
        {"run.tags"}, [&] { return !std::all_of(s_.run.tags.begin(), s_.run.tags.end(), shows); },
        what, next);
  }

  void origin() {
    const std::string& from = s_.origin.checkpoint;
    rule(
        {"origin.checkpoint"}, [&] { return !from.empty() && !parse_origin(from); },
        "\"" + printable(from) + "\" names no checkpoint of a run",
        "write the id of a run and a step that `nsactl ckpt ls` shows: \"k3fm2@400\"");
    rule(
        {"origin.optimizer", "origin.checkpoint"},
        [&] { return s_.origin.optimizer && from.empty(); },
        "has no effect without origin.checkpoint",
        "name the run that the optimizer state comes from: origin.checkpoint = \"k3fm2@400\"");
  }

  void model() {
    rule(
        {"model.heads", "model.kv_groups"},
        [&] { return s_.model.heads % s_.model.kv_groups != 0; },
        "must be a multiple of model.kv_groups, but " + number(s_.model.heads) + " heads over " +
            number(s_.model.kv_groups) + " groups leave some over",
        "each group of query heads shares one key/value head");
    rule(
        {"model.head_dimension"}, [&] { return s_.model.head_dimension % 2 != 0; },
        "must be even, not " + number(s_.model.head_dimension), "RoPE rotates pairs");
  }

  void nsa() {
    if (s_.model.attention != Attention::kNsa) return;
    const auto& n = s_.nsa;
    // If both blocks are no multiples of the stride, the stride is the mistake.
    const auto misses = [&](int64_t size) { return size % n.compression_stride != 0; };
    const std::string why = "Eq. 9 maps compressed tokens to blocks by the strides they share";
    rule(
        {"nsa.compression_stride", "nsa.compression_block", "nsa.selection_block"},
        [&] { return misses(n.compression_block) && misses(n.selection_block); },
        "must divide nsa.compression_block (" + number(n.compression_block) +
            ") and nsa.selection_block (" + number(n.selection_block) + "), but is " +
            number(n.compression_stride),
        why);
    for (const auto& [key, size, other] :
         {std::tuple("nsa.compression_block", n.compression_block, n.selection_block),
          std::tuple("nsa.selection_block", n.selection_block, n.compression_block)}) {
      rule(
          {key, "nsa.compression_stride"},
          [&, size = size, other = other] { return misses(size) && !misses(other); },
          "must be a multiple of nsa.compression_stride (" + number(n.compression_stride) +
              "), not " + number(size),
          why);
    }
    rule(
        {"nsa.selection_block", "nsa.compression_block"},
        [&] { return n.selection_block < n.compression_block; },
        "must be at least nsa.compression_block (" + number(n.compression_block) + "), not " +
            number(n.selection_block),
        "a selected block holds at least one compressed token");
    rule(
        {"nsa.branches"}, [&] { return n.branches.empty(); }, "names no branch",
        "write any of: compressed, selected, sliding");
    rule(
        {"nsa.branches"}, [&] { return has(n, Branch::kSelected) && !has(n, Branch::kCompressed); },
        "has selected without compressed",
        "the compressed keys score the blocks, and only the compressed output trains them");
    rule(
        {"nsa.gate_temperature", "nsa.gate"},
        [&] { return n.gate == Gate::kHeadSigmoid && n.gate_temperature != 1.0; },
        "has no effect on nsa.gate = \"head_sigmoid\"", "leave it out, or use group_softmax");
    rule(
        {"train.sequence_length", "nsa.compression_block", "nsa.branches"},
        [&] {
          return has(n, Branch::kCompressed) && s_.train.sequence_length < n.compression_block;
        },
        "must be at least nsa.compression_block (" + number(n.compression_block) + "), not " +
            number(s_.train.sequence_length),
        "shorter sequences hold no compressed token at all");
    rule(
        {"train.sequence_length", "nsa.selection_block", "nsa.branches"},
        [&] {
          return has(n, Branch::kSelected) && s_.train.sequence_length % n.selection_block != 0;
        },
        "must be a multiple of nsa.selection_block (" + number(n.selection_block) + "), not " +
            number(s_.train.sequence_length),
        "the last block of every sequence would be cut");
  }

  void train() {
    const auto& t = s_.train;
    const auto without_evaluations = [&](const char* key, int64_t value) {
      rule(
          {key, "eval.interval_steps", "eval.at_end"},
          [&] { return value > 0 && s_.eval.interval_steps == 0 && !s_.eval.at_end; },
          "has no effect: the run has no evaluations", "set eval.interval_steps or eval.at_end");
    };
    without_evaluations("eval.samples", s_.eval.samples);
    without_evaluations("eval.needles", s_.eval.needles);
    const int64_t product = s_.sequences_per_step();
    const int64_t at_once = std::max<int64_t>(1, t.micro_batch * s_.data_ranks());
    rule(
        {"train.global_batch", "train.micro_batch", "train.accumulate", "parallel.ranks",
         "parallel.context_ranks"},
        [&] { return t.global_batch != 0 && t.global_batch != product; },
        "must be micro_batch * accumulate * " + data_ranks_text(s_) + " = " +
            number(t.micro_batch) + " * " + number(t.accumulate) + " * " + number(s_.data_ranks()) +
            " = " + number(product) + ", not " + number(t.global_batch),
        t.global_batch > 0 && t.global_batch % at_once == 0
            ? "train.accumulate = " + number(t.global_batch / at_once) + " would fit"
            : "leave it out and it is computed");
    rule(
        {"train.warmup_steps", "train.steps"}, [&] { return t.warmup_steps > t.steps; },
        "must not exceed train.steps (" + number(t.steps) + "), but is " + number(t.warmup_steps));
    rule(
        {"train.recompute_attention", "train.activation_recompute", "model.attention"},
        [&] {
          return !t.recompute_attention &&
                 (!t.activation_recompute || s_.model.attention != Attention::kNsa);
        },
        "false has no effect without NSA and train.activation_recompute",
        "leave it out, or set train.activation_recompute = true");
    rule(
        {"precision.compute", "precision.mode"},
        [&] {
          return s_.precision.mode == PrecisionMode::kFp32 &&
                 s_.precision.compute == Compute::kBf16;
        },
        "\"bf16\" contradicts precision.mode = \"fp32\"",
        "use mode \"master\", or compute \"fp32\"");
    rule(
        {"precision.compute", "precision.mode"},
        [&] {
          return (s_.precision.mode == PrecisionMode::kStochasticRounding ||
                  s_.precision.mode == PrecisionMode::kPure) &&
                 s_.precision.compute == Compute::kFp32;
        },
        "\"fp32\" contradicts precision.mode = \"" + text_of(s_.precision.mode) +
            "\", which has BF16 weights only",
        "leave compute out, or use mode \"master\"");
    rule(
        {"checkpoint.keep_every_steps", "checkpoint.interval_steps"},
        [&] {
          return s_.checkpoint.keep_every_steps > 0 &&
                 (s_.checkpoint.interval_steps == 0 ||
                  s_.checkpoint.keep_every_steps % s_.checkpoint.interval_steps != 0);
        },
        "must be a multiple of checkpoint.interval_steps (" + number(s_.checkpoint.interval_steps) +
            "), not " + number(s_.checkpoint.keep_every_steps),
        "only steps that have a checkpoint can be kept");
  }

  void placement() {
    const auto& p = s_.parallel;
    rule(
        {"parallel.nodes", "parallel.ranks_per_node"},
        [&] { return p.nodes > 1 && p.ranks_per_node == 0; },
        "is " + number(p.nodes) + ", so that parallel.ranks_per_node is needed",
        "write ranks_per_node, the ranks on each node");
    rule(
        {"parallel.ranks", "parallel.nodes", "parallel.ranks_per_node"},
        [&] { return p.ranks_per_node > 0 && p.ranks > p.nodes * p.ranks_per_node; },
        "must be at most parallel.nodes * parallel.ranks_per_node = " +
            number(p.nodes * p.ranks_per_node) + ", not " + number(p.ranks),
        "leave parallel.ranks out and it is computed");
    const auto divides = [&](const char* key, int64_t value, const char* next) {
      rule(
          {"parallel.context_ranks", key}, [&] { return value % p.context_ranks != 0; },
          "must divide " + std::string(key) + " (" + number(value) + "), not be " +
              number(p.context_ranks),
          next);
    };
    divides("parallel.ranks", p.ranks, "groups of ranks share sequences");
    divides("model.kv_groups", s_.model.kv_groups, "each rank attends with whole KV groups");
    divides("train.sequence_length", s_.train.sequence_length,
            "each rank holds an equal part of a sequence");
    if (p.ranks_per_node > 0)
      divides("parallel.ranks_per_node", p.ranks_per_node,
              "ranks that share sequences are on one node");
    engine();
  }

  // Options go into the job's script, so only option characters are allowed.
  void engine() {
    const auto& e = s_.engine;
    const auto made_of = [](std::string_view text, std::string_view others) {
      return std::all_of(text.begin(), text.end(), [&](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
               others.find(c) != std::string_view::npos;
      });
    };
    rule(
        {"engine.name", "parallel.device"},
        [&] { return e.is_used() && s_.parallel.device == Device::kAuto; },
        "\"" + text_of(e.name) + "\" needs parallel.device = \"cuda\" or \"cpu\", not \"auto\"",
        "write it: nsad does not see the devices of a job's nodes");
    rule(
        {"engine.partition"}, [&] { return !made_of(e.partition, "-_.,"); },
        "is no name of a partition: \"" + e.partition + "\"", "sinfo lists them");
    rule(
        {"engine.time"}, [&] { return !made_of(e.time, "-:") || e.time.starts_with('-'); },
        "is no time limit: \"" + e.time + "\"", "write minutes, or HH:MM:SS, or DAYS-HH");
    const auto is_option = [&](const std::string& option) {
      return option.starts_with("--") && option.size() > 2 && made_of(option, "-_=.,:/@+%[]*");
    };
    rule(
        {"engine.options"},
        [&] { return !std::all_of(e.options.begin(), e.options.end(), is_option); },
        "must be options such as \"--account=nlp\", without spaces and quotes");
    const bool slurm_only = !e.partition.empty() || !e.time.empty() || !e.options.empty();
    rule(
        {"engine.name", "engine.partition", "engine.time", "engine.options"},
        [&] { return slurm_only && e.name != EngineName::kSlurm; },
        "must be \"slurm\" where engine.partition, engine.time or engine.options are given, not "
        "\"" +
            text_of(e.name) + "\"",
        "leave them out, or submit with --on slurm");
  }

  void supervision() {
    const auto& h = s_.hang;
    rule(
        {"hang.floor_seconds", "hang.ceiling_seconds"},
        [&] { return h.floor_seconds > h.ceiling_seconds; },
        "must not exceed hang.ceiling_seconds (" + to_toml(h.ceiling_seconds) + "), but is " +
            to_toml(h.floor_seconds));
    const double longest = std::max({h.ceiling_seconds, h.first_step_seconds, h.checkpoint_seconds,
                                     h.evaluation_seconds}) +
                           h.evidence_seconds;
    rule(
        {"parallel.collective_timeout_seconds", "hang.ceiling_seconds", "hang.first_step_seconds",
         "hang.checkpoint_seconds", "hang.evaluation_seconds", "hang.evidence_seconds"},
        [&] { return s_.parallel.collective_timeout_seconds <= longest; },
        "must lie above the longest hang limit and the time for evidence, " + to_toml(longest) +
            " s together, but is " + to_toml(s_.parallel.collective_timeout_seconds),
        "otherwise a collective tears the ranks down before their stacks are saved");
    rule(
        {"restart.max_delay_seconds", "restart.delay_seconds"},
        [&] { return s_.restart.max_delay_seconds < s_.restart.delay_seconds; },
        "must not be below restart.delay_seconds (" + to_toml(s_.restart.delay_seconds) +
            "), but is " + to_toml(s_.restart.max_delay_seconds));
  }

  void inject() {
    const auto& i = s_.inject;
    const bool chosen = i.kind != FaultKind::kNone && i.kind != FaultKind::kRandom;
    const auto strikes = [&](FaultPoint point) {
      return chosen && fault_row(i.kind).point == point;
    };
    rule(
        {"inject.rank", "parallel.ranks"}, [&] { return i.rank >= s_.parallel.ranks; },
        "must be below parallel.ranks (" + number(s_.parallel.ranks) + "), not " + number(i.rank));
    rule(
        {"inject.step", "train.steps"}, [&] { return i.step > s_.train.steps; },
        "must not exceed train.steps (" + number(s_.train.steps) + "), but is " + number(i.step));
    rule(
        {"inject.step"}, [&] { return i.step == 0; }, "steps count from 1",
        "-1 lets the seed choose");
    rule(
        {"inject.kind", "parallel.ranks"},
        [&] { return strikes(FaultPoint::kReduction) && s_.parallel.ranks < 2; },
        "\"" + text_of(i.kind) + "\" needs at least 2 ranks", "set parallel.ranks = 2 or more");
    rule(
        {"inject.kind", "parallel.ranks", "parallel.shard_update"},
        [&] {
          return strikes(FaultPoint::kStateGather) &&
                 (s_.parallel.ranks < 2 || !s_.parallel.shard_update);
        },
        "\"" + text_of(i.kind) + "\" needs ranks that update shards",
        "set parallel.shard_update = true and at least 2 ranks");
  }

  void environment() {
    for (const std::string& name : s_.run.pass_environment) {
      if (reading_.bad_keys.count("run.pass_environment")) break; // for example, too many
      const auto refuse = [&](const std::string& why, const std::string& next) {
        add_rule_problem(reading_, {"run.pass_environment"}, {"\"" + name + "\" " + why, next});
      };
      if (!is_variable_name(name)) {
        refuse("is not the name of a variable", "name variables without values");
      } else if (std::find(std::begin(kOwnVariables), std::end(kOwnVariables), name) !=
                 std::end(kOwnVariables)) {
        refuse("is set by nsad for every rank", "leave it out");
      } else if (const Toggle* toggle = toggle_of_variable(name)) {
        refuse("is a toggle, so that its value is recorded",
               "set toggles." + std::string(toggle->name) + " instead");
      } else if (const PredecessorFlag* flag = find_predecessor_flag(name)) {
        refuse("is read by nothing: " + std::string(flag->why),
               flag->ours.empty() ? "leave it out" : "use " + std::string(flag->ours));
      } else if (name.starts_with("NSA_")) {
        refuse("is read by nothing", "leave it out");
      } else if (const auto fault = check_passed_variable(name)) {
        refuse(fault->what, fault->next);
      }
    }
    size_t wrong = 0, checked = 0;
    for (const auto& [name, value] : s_.toggles) {
      if (wrong == kMostTold) {
        add_rule_problem(reading_, {"toggles"},
                         {"has " + std::to_string(s_.toggles.size() - checked) +
                              " more entries, which were not looked at",
                          ""});
        break;
      }
      ++checked;
      if (auto fault = check_toggle(name, value)) {
        add_rule_problem(reading_, {"toggles." + name}, std::move(*fault));
        ++wrong;
      }
    }
    kernels();
    graphs();
  }

  bool asks_for_oracle() const {
    return kAttentionKernels.of(s_.toggles) == choice::AttentionKernels::kReference;
  }

  // Rejects what would change the order of text that has not arrived, or needs all of it.
  void followed_data() {
    const auto refuse = [&](const std::string& key, bool hit, const std::string& why,
                            const std::string& next) {
      rule({"data.follow", key}, [&] { return s_.data.follow && hit; }, "true " + why, next);
    };
    refuse("data.source", !s_.data.sources.empty(), "follows one data set, not a mixture",
           "leave it out and wait for the fetches, or train on data.path alone");
    refuse("restart.shortest_sequence", s_.restart.shortest_sequence > 0,
           "needs sequences of one length: shorter ones would come from other generations",
           "leave one of the two out");
    refuse("parallel.nodes", s_.parallel.nodes > 1, "is not built for several nodes",
           "use one node, or wait for the fetch and leave data.follow out");
    refuse("engine.name", s_.engine.is_used(), "is not built for nodes of an engine",
           "use this node, or wait for the fetch and leave data.follow out");
  }

  // The same rules as in the worker (worker/rules/model_setup.cpp), which also knows the device and
  // "auto".
  void graphs() {
    const bool on = kCudaGraphs.of(s_.toggles) == Graphs::kOn;
    const auto refuse = [&](std::vector<std::string> keys, bool hit, const std::string& why) {
      keys.insert(keys.begin(), "toggles.cuda.graphs");
      rule(keys, [&] { return on && hit; }, why, "use \"auto\" or \"off\"");
    };
    refuse({"parallel.device"}, s_.parallel.device == Device::kCpu,
           "\"on\" needs a GPU, but parallel.device is \"cpu\"");
    refuse({"data.document_mask"}, s_.data.document_mask,
           "\"on\" needs the same launches in every step, but with data.document_mask they follow "
           "where documents begin");
    refuse({"parallel.context_ranks"}, s_.parallel.context_ranks > 1,
           "\"on\" needs passes of one rank, but with parallel.context_ranks they exchange heads "
           "with other ranks");
    refuse({"parallel.find_unused"}, s_.parallel.find_unused,
           "\"on\" needs the same launches in every step, but with parallel.find_unused the "
           "parameters that get gradients may change");
    refuse({"toggles.attention.kernels"},
           s_.model.attention == Attention::kNsa && asks_for_oracle(),
           "\"on\" needs kernels that a GPU runs, but attention.kernels is \"reference\"");
  }

  // Rejects what the plan of kernels refuses on the best device that the ranks may get.
  void kernels() {
    constexpr std::string_view kRead[] = {
        "model.",   "nsa.",       "train.micro_batch", "train.sequence_length",
        "toggles.", "precision.", "parallel.device"};
    for (const std::string& bad : reading_.bad_keys)
      for (const std::string_view read : kRead)
        if (bad.starts_with(read)) return;
    const bool fp32 =
        s_.precision.mode == PrecisionMode::kFp32 || s_.precision.compute == Compute::kFp32;
    const choice::KernelPlan plan = plan_kernels(s_, s_.parallel.device != Device::kCpu, !fp32);
    for (const choice::Refusal& refusal : plan.refusals)
      for (const serves::Reason& reason : refusal.reasons) {
        const std::string toggle = "toggles." + std::string(refusal.toggle);
        std::vector<std::string> keys(reason.keys.begin(), reason.keys.end());
        // The problem names the key that the file sets.
        const auto set = std::find_if(keys.begin(), keys.end(), [&](const std::string& key) {
          return reading_.places.contains(key);
        });
        if (set != keys.end()) std::rotate(keys.begin(), set, set + 1);
        keys.push_back(toggle);
        add_rule_problem(
            reading_, keys,
            {toggle + " = \"" + std::string(refusal.value) + "\" is not served: " + reason.text,
             "use \"auto\" or \"" + std::string(refusal.instead) + "\""});
      }
    rule(
        {"toggles.attention.kernels", "model.attention"},
        [&] { return asks_for_oracle() && s_.model.attention == Attention::kDense; },
        "\"reference\" is the oracle of NSA, but model.attention is \"dense\"", "use \"aten\"");
  }

  const RunSpec& s_;
  Reading& reading_;
};

} // namespace

void check_rules(const RunSpec& spec, Reading& reading) {
  Rules(spec, reading).all();
}

} // namespace nsa::spec
