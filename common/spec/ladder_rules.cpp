#include "common/spec/ladder_rules.h"

#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/ladder.h"
#include "common/spec/parse.h"

#include <algorithm>

namespace nsa::spec {

namespace {

// An entry that ends in "." allows every key of that table.
constexpr std::string_view kMaySet[] = {"train.activation_recompute",
                                        "train.learning_rate",
                                        "train.gradient_clip",
                                        "train.non_finite",
                                        "train.non_finite_limit",
                                        "train.threads",
                                        "parallel.bucket_mib",
                                        "parallel.compress",
                                        "parallel.shard_update",
                                        "parallel.static_graph",
                                        "parallel.find_unused",
                                        "parallel.collective_timeout_seconds",
                                        "hang.floor_seconds",
                                        "hang.ceiling_seconds",
                                        "hang.factor",
                                        "hang.start_up_seconds",
                                        "hang.first_step_seconds",
                                        "checkpoint.",
                                        "toggles."};
struct Instead {
  std::string_view key, next;
};
constexpr Instead kInstead[] = {{"train.micro_batch", "write halve = \"micro_batch\""},
                                {"train.accumulate", "it follows from the other keys of the rung"},
                                {"train.sequence_length", "write shorten_sequences = true"},
                                {"parallel.ranks", "write ranks = 1"}};

std::string prefix_of(size_t rung) {
  return "restart.fallback[" + std::to_string(rung) + "].";
}

class LadderRules {
public:
  LadderRules(const RunSpec& spec, Reading& reading) : spec_(spec), reading_(reading) {
    plain_ = spec;
    plain_.restart.fallback.clear();
    plain_.restart.ladder = LadderPreset::kNone;
    plain_.restart.climb_after_steps = plain_.restart.shortest_sequence = 0;
    plain_.inject = {}; // was checked before; a rung may remove its rank
  }

  void all() {
    const RestartSection& restart = spec_.restart;
    if (restart.fallback.size() > kMostRungs)
      return refuse("restart.fallback", "has " + std::to_string(restart.fallback.size()) +
                                            " rungs, more than " + std::to_string(kMostRungs));
    bool sound = std::none_of(reading_.bad_keys.begin(), reading_.bad_keys.end(),
                              [](const std::string& key) {
                                return key.starts_with("train.") || key.starts_with("parallel.") ||
                                       key.starts_with("restart.") || key.starts_with("toggles.");
                              });
    for (size_t i = 0; i < restart.fallback.size(); ++i)
      sound = check_set(i) && check_shape(i) && sound;
    if (!sound || !validate(plain_).empty()) return; // ladder_of() needs a valid run
    const Ladder ladder = ladder_of(spec_);
    for (size_t i = 0; i < ladder.rungs.size(); ++i)
      check_effect(ladder, i);
    check_section(ladder);
  }

private:
  void refuse(const std::string& key, std::string what, std::string next = {}) {
    add_rule_problem(reading_, {key}, {std::move(what), std::move(next)});
  }

  bool check_set(size_t i) {
    const std::string at = prefix_of(i) + "set";
    constexpr size_t kMostSet = 32;
    if (spec_.restart.fallback[i].set.size() > kMostSet) {
      refuse(at, "sets more than " + std::to_string(kMostSet) + " keys");
      return false;
    }
    bool sound = reading_.bad_keys.count(at) == 0;
    for (const std::string& pair : spec_.restart.fallback[i].set) {
      const size_t equals = pair.find('=');
      const std::string key(trim(std::string_view(pair).substr(0, equals)));
      const bool allowed =
          std::any_of(std::begin(kMaySet), std::end(kMaySet), [&](std::string_view may) {
            return may.ends_with('.') ? key.starts_with(may) : key == may;
          });
      std::vector<Problem> problems;
      if (equals != std::string::npos && allowed)
        problems = apply_overrides(plain_, {pair}).problems;
      const auto found = std::find_if(problems.begin(), problems.end(),
                                      [&](const Problem& p) { return p.key == key; });
      if (equals == std::string::npos) {
        refuse(at, "\"" + pair + "\" has no value", "write \"" + key + "=VALUE\"");
      } else if (!allowed) {
        refuse_key(at, key);
      } else if (found != problems.end()) {
        refuse(at, "\"" + pair + "\": " + found->what, found->next);
      } else {
        continue;
      }
      sound = false;
    }
    return sound;
  }

  void refuse_key(const std::string& at, const std::string& key) {
    RunSpec copy;
    const std::vector<std::string> keys = field_keys(run_fields(copy));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      const auto nearest = nearest_name(key, keys);
      return refuse(at, "no key is named \"" + key + "\"",
                    nearest ? "did you mean " + *nearest + "?" : "docs/run-file.md lists the keys");
    }
    const auto instead = std::find_if(std::begin(kInstead), std::end(kInstead),
                                      [&](const Instead& one) { return one.key == key; });
    refuse(at, "a rung may not set " + key,
           instead == std::end(kInstead) ? "what is trained stays the same on every rung"
                                         : std::string(instead->next));
  }

  bool check_shape(size_t i) {
    const FallbackRule& rule = spec_.restart.fallback[i];
    const std::string prefix = prefix_of(i);
    bool sound = true;
    const auto wrong = [&](const std::string& key, bool broken, const std::string& what,
                           const std::string& next) {
      if (!broken || reading_.bad_keys.count(prefix + key)) return;
      refuse(prefix + key, what, next);
      sound = false;
    };
    const int64_t ranks = spec_.parallel.ranks, sequences = spec_.sequences_per_step();
    wrong("classes", rule.classes.empty() && reading_.places.count(prefix + "classes"),
          "names no class of failure", "write classes = [\"gpu-out-of-memory\"]");
    wrong("ranks", rule.ranks >= ranks,
          "must be below parallel.ranks (" + std::to_string(ranks) + "), not " +
              std::to_string(rule.ranks),
          "a rung takes ranks away");
    wrong(
        "ranks",
        rule.ranks > 0 && rule.ranks < ranks && (spec_.train.accumulate * ranks) % rule.ranks != 0,
        "does not divide the " + std::to_string(sequences) +
            " sequences of a step into micro-batches of " + std::to_string(spec_.train.micro_batch),
        "the global batch stays on every rung");
    const int64_t shared = spec_.parallel.context_ranks;
    wrong("ranks", rule.ranks > 0 && shared > 1 && rule.ranks % shared != 0,
          "must be a multiple of parallel.context_ranks (" + std::to_string(shared) + "), not " +
              std::to_string(rule.ranks),
          "the ranks that share sequences stay together");
    wrong("shorten_sequences", rule.shorten_sequences && spec_.restart.shortest_sequence == 0,
          "needs restart.shortest_sequence, to which sequences may be shortened",
          "write shortest_sequence = 512 under [restart]");
    wrong("classes",
          rule.set.empty() && rule.ranks == 0 && rule.halve == Halve::kNothing &&
              !rule.shorten_sequences,
          "are answered by a rung that changes nothing",
          "give it set, ranks, halve or shorten_sequences");
    return sound;
  }

  // Checks a rung together with the earlier rungs that share a class with it, because the run takes
  // those first.
  void check_effect(const Ladder& ladder, size_t i) {
    std::vector<int> above;
    const auto& classes = ladder.rungs[i].classes;
    for (size_t k = 0; k < i; ++k)
      for (const wire::FailureClass one : ladder.rungs[k].classes)
        if (std::find(classes.begin(), classes.end(), one) != classes.end()) {
          above.push_back(static_cast<int>(k));
          break;
        }
    const Settings before = compose(ladder, above);
    std::vector<int> with = above;
    with.push_back(static_cast<int>(i));
    const bool built_in = i >= spec_.restart.fallback.size();
    const std::string at = built_in ? "restart.ladder" : prefix_of(i) + "classes";
    if (!built_in && compose(ladder, with) == before)
      return refuse(at,
                    above.empty() ? "are answered by a rung that changes nothing: the run file "
                                    "says the same"
                                  : "are answered by a rung that changes nothing: the rungs above "
                                    "it do the same",
                    "leave the rung out");
    for (const Problem& problem : validate(on_rungs(plain_, ladder, with)))
      return refuse(at,
                    (built_in ? "has a rung whose run is refused: "
                              : "are answered by a rung whose run is refused: ") +
                        problem.key + " " + problem.what,
                    problem.next);
  }

  void check_section(const Ladder& ladder) {
    const RestartSection& restart = spec_.restart;
    const bool shortens = restart.ladder == LadderPreset::kMemory ||
                          std::any_of(restart.fallback.begin(), restart.fallback.end(),
                                      [](const FallbackRule& r) { return r.shorten_sequences; });
    if (restart.shortest_sequence > 0 && !shortens)
      refuse("restart.shortest_sequence", "has no effect: no rung shortens sequences",
             "leave it out, or write restart.ladder = \"memory\"");
    if (restart.shortest_sequence > spec_.train.sequence_length / 2)
      refuse("restart.shortest_sequence", "is above half of train.sequence_length (" +
                                              std::to_string(spec_.train.sequence_length) +
                                              "): nothing can be shortened");
    if (restart.climb_after_steps > 0 && ladder.rungs.empty())
      refuse("restart.climb_after_steps", "has no effect: the run has no rungs",
             "add [[restart.fallback]] or restart.ladder");
    if (restart.ladder != LadderPreset::kNone && spec_.parallel.device != Device::kAuto &&
        ladder.rungs.size() == restart.fallback.size())
      refuse("restart.ladder",
             "\"" + text_of(restart.ladder) + "\" changes nothing that the run file leaves open",
             "leave it out");
  }

  const RunSpec& spec_;
  Reading& reading_;
  RunSpec plain_; // without rungs, so that validate() does not check the ladder again
};

} // namespace

void check_ladder(const RunSpec& spec, Reading& reading) {
  const RestartSection& restart = spec.restart;
  if (restart.fallback.empty() && restart.ladder == LadderPreset::kNone &&
      restart.climb_after_steps == 0 && restart.shortest_sequence == 0)
    return;
  LadderRules(spec, reading).all();
}

} // namespace nsa::spec
