#include "common/spec/ladder.h"

#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/parse.h"

#include <algorithm>
#include <charconv>

namespace nsa::spec {

namespace {

using wire::FailureClass;

constexpr std::string_view kRanks = kLadderNumbers[0], kMicroBatch = kLadderNumbers[1],
                           kAccumulate = kLadderNumbers[2], kGlobal = kLadderNumbers[3],
                           kLength = kLadderNumbers[4], kEvalBatches = kLadderNumbers[5];
constexpr int64_t kMostEvalBatches = 1'000'000'000; // maximum of eval.batches in fields.cpp

int64_t number_of(const Settings& settings, std::string_view key) {
  const std::string& text = settings.at(std::string(key));
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void put(Settings& settings, std::string_view key, int64_t value) {
  settings[std::string(key)] = std::to_string(value);
}

// The largest divisor of `value` that is at most half of it: 8 -> 4, 6 -> 3, 3 -> 1.
int64_t half_of(int64_t value) {
  for (int64_t part = value / 2; part > 1; --part)
    if (value % part == 0) return part;
  return 1;
}

void halve(Settings& s) {
  const int64_t was = number_of(s, kMicroBatch);
  if (was < 2) return;
  const int64_t is = half_of(was), factor = was / is;
  put(s, kMicroBatch, is);
  put(s, kAccumulate, number_of(s, kAccumulate) * factor);
  put(s, kEvalBatches, std::min(number_of(s, kEvalBatches) * factor, kMostEvalBatches));
}

// Halves the length and doubles the number of sequences, so that a step keeps its number of tokens.
void shorten(Settings& s, int64_t shortest) {
  const int64_t was = number_of(s, kLength);
  if (was % 2 != 0 || shortest < 1 || was / 2 < shortest) return;
  put(s, kLength, was / 2);
  put(s, kAccumulate, number_of(s, kAccumulate) * 2);
  put(s, kEvalBatches, std::min(number_of(s, kEvalBatches) * 2, kMostEvalBatches));
  if (number_of(s, kGlobal) > 0) put(s, kGlobal, number_of(s, kGlobal) * 2);
}

// Keeps the global batch. Does nothing if `ranks` does not divide the micro-steps of a step.
void reduce_ranks(Settings& s, int64_t ranks) {
  const int64_t was = number_of(s, kRanks);
  if (ranks < 1 || ranks >= was) return;
  const int64_t micro_steps = number_of(s, kAccumulate) * was;
  if (micro_steps % ranks != 0) return;
  put(s, kRanks, ranks);
  put(s, kAccumulate, micro_steps / ranks);
}

void apply(Settings& s, const Rung& rung, const Ladder& ladder) {
  for (const auto& [key, value] : rung.set)
    s[key] = value;
  if (rung.halve_micro_batch) halve(s);
  if (rung.shorten_sequences) shorten(s, ladder.shortest_sequence);
  if (rung.ranks > 0) reduce_ranks(s, rung.ranks);
}

// The value in TOML notation. Empty for a toggle that is not set.
std::string value_of(const RunSpec& spec, const std::string& key) {
  constexpr std::string_view kToggles = "toggles.";
  if (key.starts_with(kToggles)) {
    const auto found = spec.toggles.find(key.substr(kToggles.size()));
    return found == spec.toggles.end() ? "" : found->second;
  }
  RunSpec copy = spec;
  const FieldTable fields = run_fields(copy);
  const Field* field = find_field(fields, key);
  return field == nullptr ? "" : to_toml(get(*field));
}

std::string key_of(const std::string& pair) {
  return std::string(trim(std::string_view(pair).substr(0, pair.find('='))));
}

RunSpec without_rungs(RunSpec spec) {
  spec.restart.fallback.clear();
  spec.restart.ladder = LadderPreset::kNone;
  spec.restart.climb_after_steps = spec.restart.shortest_sequence = 0;
  return spec;
}

Rung rung_of(const FallbackRule& rule, const RunSpec& spec) {
  Rung rung;
  rung.classes = rule.classes;
  rung.after = static_cast<int>(rule.after);
  rung.ranks = rule.ranks;
  rung.halve_micro_batch = rule.halve == Halve::kMicroBatch;
  rung.shorten_sequences = rule.shorten_sequences;
  const RunSpec changed = apply_overrides(without_rungs(spec), rule.set).spec;
  for (const std::string& pair : rule.set)
    rung.set[key_of(pair)] = value_of(changed, key_of(pair));
  return rung;
}

std::vector<Rung> communication_rungs(const RunSpec& spec) {
  Rung rung;
  rung.classes = {FailureClass::kNetwork, FailureClass::kHang, FailureClass::kCrash};
  rung.after = 2; // the first may have been an accident
  std::vector<Rung> rungs;
  if (spec.parallel.ranks > 1) {
    rung.set = {{"parallel.compress", "\"off\""}, {"parallel.bucket_mib", "100.0"}};
    rungs.push_back(rung);
  }
  if (spec.parallel.device == Device::kCuda) {
    rung.set = {{"toggles.cuda.graphs", "off"}};
    rungs.push_back(rung);
    rung.set = {{"toggles.attention.kernels", "aten"}, {"toggles.layers.kernels", "aten"}};
    rungs.push_back(rung);
  }
  rung.set.clear();
  rung.classes.push_back(FailureClass::kHardware);
  const int64_t shared = spec.parallel.context_ranks; // ranks that share sequences stay together
  for (int64_t groups = spec.parallel.ranks / shared; groups > 1;) {
    groups = half_of(groups);
    rung.ranks = groups * shared;
    rungs.push_back(rung);
  }
  return rungs;
}

std::vector<Rung> memory_rungs(const RunSpec& spec) {
  Rung rung;
  rung.classes = {FailureClass::kGpuOutOfMemory, FailureClass::kHostOutOfMemory};
  std::vector<Rung> rungs;
  rung.halve_micro_batch = true;
  for (int64_t batch = spec.train.micro_batch; batch > 1; batch = half_of(batch))
    rungs.push_back(rung);
  rung.halve_micro_batch = false;
  rung.set = {{"train.activation_recompute", "true"}};
  rungs.push_back(rung);
  rung.set.clear();
  rung.shorten_sequences = true;
  const int64_t shortest = spec.restart.shortest_sequence;
  for (int64_t length = spec.train.sequence_length; shortest > 0 && length / 2 >= shortest;
       length /= 2)
    rungs.push_back(rung);
  return rungs;
}

void fill_base(Ladder& ladder, const RunSpec& spec) {
  for (const std::string_view key : kLadderNumbers)
    ladder.base[std::string(key)] = value_of(spec, std::string(key));
  for (const Rung& rung : ladder.rungs)
    for (const auto& [key, value] : rung.set)
      ladder.base[key] = value_of(spec, key);
}

// Appends the rungs of the preset, except those that change nothing when all earlier rungs are in
// effect.
void add_preset(Ladder& ladder, const RunSpec& spec, std::vector<Rung> rungs) {
  for (Rung& rung : rungs) {
    Ladder longer = ladder;
    longer.rungs.push_back(std::move(rung));
    fill_base(longer, spec);
    std::vector<int> all;
    for (size_t i = 0; i + 1 < longer.rungs.size(); ++i)
      all.push_back(static_cast<int>(i));
    const Settings before = compose(longer, all);
    all.push_back(static_cast<int>(all.size()));
    if (longer.rungs.size() <= kMostRungs && compose(longer, all) != before)
      ladder = std::move(longer);
  }
}

} // namespace

Ladder ladder_of(const RunSpec& spec) {
  Ladder ladder;
  ladder.climb_after_steps = spec.restart.climb_after_steps;
  ladder.shortest_sequence = spec.restart.shortest_sequence;
  for (const FallbackRule& rule : spec.restart.fallback)
    ladder.rungs.push_back(rung_of(rule, spec));
  fill_base(ladder, spec);
  if (spec.restart.ladder == LadderPreset::kCommunication)
    add_preset(ladder, spec, communication_rungs(spec));
  if (spec.restart.ladder == LadderPreset::kMemory) add_preset(ladder, spec, memory_rungs(spec));
  if (ladder.rungs.empty()) ladder = {};
  return ladder;
}

Settings compose(const Ladder& ladder, std::vector<int> active) {
  std::sort(active.begin(), active.end());
  Settings settings = ladder.base;
  for (const int rung : active)
    apply(settings, ladder.rungs.at(static_cast<size_t>(rung)), ladder);
  return settings;
}

std::vector<std::string> overrides_of(const Ladder& ladder, const std::vector<int>& active) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : compose(ladder, active))
    if (value != ladder.base.at(key)) pairs.push_back(key + "=" + value);
  return pairs;
}

std::string changes_text(const Settings& before, const Settings& after) {
  std::vector<std::string> changes;
  for (const auto& [key, value] : after) {
    const auto was = before.find(key);
    if (was == before.end() || was->second == value) continue;
    const auto shown = [](const std::string& text) { return text.empty() ? "default" : text; };
    changes.push_back(key + " " + shown(was->second) + " -> " + shown(value));
  }
  return join(changes, ", ");
}

RunSpec on_rungs(const RunSpec& spec, const Ladder& ladder, const std::vector<int>& active) {
  if (active.empty()) return spec;
  RunSpec changed = apply_overrides(without_rungs(spec), overrides_of(ladder, active)).spec;
  changed.restart = spec.restart;
  return changed;
}

} // namespace nsa::spec
