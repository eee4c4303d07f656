#include "tests/fake_worker/options.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "tests/fake_worker/faults.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <vector>

namespace nsa::fake {

namespace {

Result<int64_t> to_number(const std::string& name, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(ErrorCode::kInvalidArgument, name + " takes a number, not '" + text + "'");
  return value;
}

Status set_fault(Options& o, const std::string& value) {
  const size_t at = value.find('@');
  o.fault = value.substr(0, at);
  if (at != std::string::npos) {
    NSA_TRY_ASSIGN(const int64_t step, to_number("fault", value.substr(at + 1)));
    o.fault_step = static_cast<uint64_t>(step);
  }
  if (!is_fault_kind(o.fault))
    return fail(ErrorCode::kInvalidArgument, "unknown fault '" + o.fault + "'");
  return {};
}

Status set_fake(Options& o, const std::string& pair) {
  const size_t equals = pair.find('=');
  if (equals == std::string::npos)
    return fail(ErrorCode::kInvalidArgument, "--fake takes name=value, not '" + pair + "'");
  const std::string name = pair.substr(0, equals), text = pair.substr(equals + 1);
  if (name == "fault") return set_fault(o, text);
  NSA_TRY_ASSIGN(const int64_t value, to_number(name, text));
  const std::map<std::string, std::function<void()>> setters = {
      {"steps", [&] { o.steps = static_cast<uint64_t>(value); }},
      {"step_ms", [&] { o.step_ms = value; }},
      {"start_ms", [&] { o.start_ms = value; }},
      {"checkpoint_every", [&] { o.checkpoint_every = static_cast<uint64_t>(value); }},
      {"log_lines", [&] { o.log_lines = value; }},
      {"log_bytes", [&] { o.log_bytes = value; }},
      {"flood_mb", [&] { o.flood_mb = value; }},
      {"peers", [&] { o.peers = value != 0; }},
      {"async", [&] { o.async = value != 0; }},
      {"deaf", [&] { o.deaf = value != 0; }},
      {"diverge_at", [&] { o.diverge_at = static_cast<uint64_t>(value); }},
      {"evaluations", [&] { o.evaluations = value; }},
      {"other_ranks", [&] { o.other_ranks = value; }},
      {"orphans", [&] { o.orphans = static_cast<int>(value); }},
      {"rank", [&] { o.fault_rank = static_cast<Rank>(value); }},
      {"attempt", [&] { o.fault_attempt = static_cast<AttemptNumber>(value); }},
      {"code", [&] { o.exit_code = static_cast<int>(value); }},
  };
  const auto setter = setters.find(name);
  if (setter == setters.end())
    return fail(ErrorCode::kInvalidArgument, "unknown --fake option '" + name + "'");
  setter->second();
  return {};
}

Status read_spec(Options& o) {
  NSA_TRY_ASSIGN(const std::string text, read_file(o.spec));
  NSA_TRY_ASSIGN(const auto spec, parse_json(text, o.spec));
  if (!spec.is_object()) return fail(ErrorCode::kCorrupt, o.spec + " is not a JSON object");
  if (o.steps == 0) o.steps = spec.value(nlohmann::json::json_pointer("/train/steps"), uint64_t{0});
  const auto inject = spec.value("inject", nlohmann::json::object());
  const std::string kind = inject.value("kind", "none");
  if (kind == "none" || o.fault != "none") return {};
  if (!is_fault_kind(kind) || inject.value("rank", -1) < 0 || inject.value("step", -1) < 0)
    return fail(ErrorCode::kUnsupported,
                "the spec's [inject] is not one that can be faked: " + inject.dump());
  o.fault = kind;
  o.fault_step = inject["step"].get<uint64_t>();
  o.fault_rank = inject["rank"].get<Rank>();
  o.fault_attempt = inject.value("attempt", 1);
  return {};
}

} // namespace

Result<Options> parse_options(int argc, char** argv) {
  Options o;
  const std::map<std::string, std::string*> texts = {{"--spec", &o.spec},
                                                     {"--run-folder", &o.run_folder},
                                                     {"--attempt-folder", &o.attempt_folder},
                                                     {"--run-id", &o.run_id},
                                                     {"--rendezvous", &o.rendezvous},
                                                     {"--resume", &o.resume},
                                                     {"--without-graphs", &o.without_graphs}};
  const std::map<std::string, int*> numbers = {
      {"--attempt", &o.attempt}, {"--rank", &o.rank}, {"--world-size", &o.world_size}};
  for (int i = 1; i < argc;) {
    const std::string name = argv[i++];
    if (name == "--fake") {
      while (i < argc && argv[i][0] != '-')
        NSA_TRY(set_fake(o, argv[i++]));
      continue;
    }
    if (i == argc) return fail(ErrorCode::kInvalidArgument, name + " has no value");
    const std::string value = argv[i++];
    if (const auto text = texts.find(name); text != texts.end()) {
      *text->second = value;
    } else if (const auto number = numbers.find(name); number != numbers.end()) {
      NSA_TRY_ASSIGN(const int64_t parsed, to_number(name, value));
      *number->second = static_cast<int>(parsed);
    } else {
      return fail(ErrorCode::kInvalidArgument, "unknown option " + name);
    }
  }
  if (!o.spec.empty()) NSA_TRY(read_spec(o));
  if (o.steps == 0) o.steps = 20;
  return o;
}

} // namespace nsa::fake
