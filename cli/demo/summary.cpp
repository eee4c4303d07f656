#include "cli/demo/summary.h"

#include "cli/demo/own_node.h"
#include "common/base/text.h"
#include "common/spec/fault_table.h"
#include "common/wire/words.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

namespace nsa::demo {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kLongestRecord = size_t{1} << 20;

// Returns the verdict's word for a rank with that fault; empty for faults that the demo never
// injects.
std::string_view verdict_of(spec::FaultKind kind) {
  using enum spec::FaultKind;
  switch (kind) {
  case kStopSignal:
    return "stopped";
  case kMutexDeadlock:
    return "deadlocked";
  case kSpin:
    return "spinning";
  case kSkipCollective:
    return "skipped-collective";
  case kDataStall:
    return "data-stall";
  default:
    return "";
  }
}

template <class Map> Json first_of(const Map& values) {
  return values.empty() ? Json() : Json(values.begin()->second);
}
template <class Map> Json last_of(const Map& values) {
  return values.empty() ? Json() : Json(values.rbegin()->second);
}

Json hang_of(const nlohmann::json& run) {
  const nlohmann::json hang = at(run, "/hangs/0");
  if (hang.is_null()) return nullptr;
  return {{"rank", at(hang, "/rank")},
          {"step", at(hang, "/step")},
          {"phase", at(hang, "/phase")},
          {"kind", at(hang, "/kind")},
          {"detect_s", at(hang, "/detect_seconds")},
          {"evidence_path", at(hang, "/evidence_path")},
          {"recover_s", at(hang, "/recover_seconds")}};
}

Json precisions_of(const nlohmann::json& run) {
  std::set<std::string> found;
  for (const auto& rank : at(run, "/ranks"))
    found.insert(rank.value("compute_precision", ""));
  return Json(found);
}

// Collects the dotted names of members that are null.
void find_missing(const Json& value, const std::string& name, std::vector<std::string>& missing) {
  if (value.is_null()) missing.push_back(name);
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.items())
    find_missing(member, name.empty() ? key : name + "." + key, missing);
}

constexpr const char* kPromised[] = {"final_state",
                                     "attempts",
                                     "ranks",
                                     "steps",
                                     "loss_first",
                                     "loss_last",
                                     "heldout_loss_last",
                                     "unigram_entropy_nats",
                                     "bigram_entropy_nats",
                                     "injected",
                                     "hang",
                                     "tokens_per_s",
                                     "peak_rss_bytes",
                                     "sample"};

bool has_stacks(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank-") && name.ends_with(".txt")) return true;
  }
  return false;
}

std::string fixed(const Json& value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value.get<double>());
  return text;
}

} // namespace

Result<Losses> read_losses(std::string_view metrics) {
  Losses losses;
  for (const std::string& line : split(metrics, '\n')) {
    if (line.empty()) continue;
    NSA_TRY_ASSIGN(const auto record, parse_json(line, "metrics.jsonl", {.bytes = kLongestRecord}));
    const auto kind = at(record, "/kind"), step = at(record, "/step"), loss = at(record, "/loss");
    if (!step.is_number_integer() || !loss.is_number()) continue;
    const auto is = choice_from<wire::RecordKind>(kind.is_string() ? kind.get<std::string>() : "");
    if (is == wire::RecordKind::kEvaluation)
      losses.heldout[step.get<int64_t>()] = loss.get<double>();
    if (is != wire::RecordKind::kStep) continue;
    losses.training[step.get<int64_t>()] = loss.get<double>();
    losses.tokens_per_second.push_back(record.value("tokens_per_second", 0.0));
  }
  std::sort(losses.tokens_per_second.begin(), losses.tokens_per_second.end());
  return losses;
}

Json summarize(const Material& material, const Losses& losses) {
  const nlohmann::json& run = material.run;
  const auto& rates = losses.tokens_per_second;
  return {{"final_state", at(run, "/summary/state")},
          {"attempts", at(run, "/summary/attempt")},
          {"ranks", at(run, "/summary/ranks")},
          {"steps", at(run, "/summary/step")},
          {"loss_first", first_of(losses.training)},
          {"loss_last", last_of(losses.training)},
          {"heldout_loss_last", last_of(losses.heldout)},
          {"unigram_entropy_nats", at(material.dataset, "/unigram_entropy_nats")},
          {"bigram_entropy_nats", at(material.dataset, "/bigram_entropy_nats")},
          {"injected",
           {{"rank", at(material.injected, "/rank")},
            {"step", at(material.injected, "/step")},
            {"kind", at(material.injected, "/kind")}}},
          {"hang", hang_of(run)},
          {"tokens_per_s", rates.empty() ? Json() : Json(rates[rates.size() / 2])},
          {"peak_rss_bytes", at(run, "/came/peak_rank_resident_bytes")},
          {"compute_precision", precisions_of(run)},
          {"sample", material.sample.empty() ? Json() : Json(material.sample)},
          {"estimate", at(run, "/estimate")},
          {"came", at(run, "/came")},
          {"seed", material.seed},
          {"seconds", std::round(material.seconds * 10) / 10}};
}

std::vector<std::string> broken_promises(const Json& summary) {
  std::vector<std::string> missing;
  for (const char* name : kPromised)
    find_missing(summary.value(name, Json()), name, missing);
  if (!missing.empty()) return {"missing in the summary: " + join(missing, ", ")};
  std::vector<std::string> broken;
  const Json &injected = summary["injected"], &hang = summary["hang"];
  if (!(summary["loss_last"] < summary["loss_first"]))
    broken.emplace_back("the training loss did not fall");
  if (!(summary["heldout_loss_last"] < summary["bigram_entropy_nats"]))
    broken.emplace_back("the held-out loss did not end below the bigram entropy");
  const auto kind = choice_from<spec::FaultKind>(injected["kind"].get<std::string>());
  if (hang["rank"] != injected["rank"] || !kind ||
      hang["kind"].get<std::string>() != verdict_of(*kind))
    broken.push_back("the verdict (" + hang["kind"].get<std::string>() + ", rank " +
                     hang["rank"].dump() + ") is not what was injected");
  const auto steps_off = hang["step"].get<int64_t>() - injected["step"].get<int64_t>();
  if (std::abs(steps_off) > 1)
    broken.push_back("the verdict names step " + hang["step"].dump() + ", the stall was at " +
                     injected["step"].dump());
  if (!has_stacks(hang["evidence_path"].get<std::string>()))
    broken.push_back("no stacks in " + hang["evidence_path"].get<std::string>());
  if (summary["final_state"] != text_of(wire::RunState::kCompleted) || summary["attempts"] != 2)
    broken.push_back(summary["final_state"].get<std::string>() + " after " +
                     summary["attempts"].dump() + " attempts; completed after 2 expected");
  return broken;
}

std::string told(const Json& s) {
  const Json &injected = s["injected"], &hang = s["hang"];
  std::string precisions;
  for (const Json& precision : s["compute_precision"])
    precisions += (precisions.empty() ? "" : ", ") + precision.get<std::string>();
  return "  loss       " + fixed(s["loss_first"], 3) + " -> " + fixed(s["loss_last"], 3) +
         "; held-out " + fixed(s["heldout_loss_last"], 3) + " (bigram entropy " +
         fixed(s["bigram_entropy_nats"], 3) + ")\n  computed   in " + precisions + ", " +
         fixed(s["tokens_per_s"], 0) + " tokens/s on " + s["ranks"].dump() +
         " ranks\n  injected   " + injected["kind"].get<std::string>() + " on rank " +
         injected["rank"].dump() + " at step " + injected["step"].dump() + "\n  hang       rank " +
         hang["rank"].dump() + ", step " + hang["step"].dump() + ", " +
         hang["phase"].get<std::string>() + ", called " + hang["kind"].get<std::string>() +
         "; found after " + fixed(hang["detect_s"], 1) + " s\n  recovered  " +
         fixed(hang["recover_s"], 1) + " s later, attempt " + s["attempts"].dump() +
         "; stacks: " + hang["evidence_path"].get<std::string>() + "\n";
}

} // namespace nsa::demo
