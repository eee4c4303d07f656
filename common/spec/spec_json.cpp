#include "common/spec/spec_json.h"

#include "common/base/checksum.h"
#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/gate.h"
#include "common/spec/ladder.h"
#include "common/spec/ladder_rules.h"
#include "common/spec/mixture.h"

namespace nsa::spec {

namespace {

using nlohmann::json;

std::optional<Value> from_json_value(const json& value) {
  if (value.is_boolean()) return Value(value.get<bool>());
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))
    return std::nullopt;
  if (value.is_number_integer()) return Value(value.get<int64_t>());
  if (value.is_number_float()) return Value(value.get<double>());
  if (value.is_string()) return Value(value.get<std::string>());
  if (!value.is_array()) return std::nullopt;
  TextList list;
  for (const json& element : value) {
    if (!element.is_string()) return std::nullopt;
    list.push_back(element.get<std::string>());
  }
  return Value(std::move(list));
}

// Splits "a.b" into {"a", "b"}; a key without a table into {"", key}.
std::pair<std::string, std::string> split_key(std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {"", std::string(key)};
  return {std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

// Returns for example "integer", "one of: auto, cpu, cuda", or "a list of: compressed, selected".
std::string expected(const Field& field) {
  const auto joined = [](const auto& names) { return join({names.begin(), names.end()}, ", "); };
  if (const auto* of = std::get_if<ChoiceReference>(&field.at))
    return "one of: " + joined(of->names);
  if (const auto* of = std::get_if<ChoiceList>(&field.at)) return "a list of: " + joined(of->names);
  return std::string(type_name(field));
}

} // namespace

json to_json(const RunSpec& spec) {
  RunSpec copy = spec;
  json out = json::object();
  for (const Field& field : run_fields(copy)) {
    const auto [table, name] = split_key(field.key);
    json& at = table.empty() ? out[name] : out[table][name];
    std::visit([&](const auto& value) { at = value; }, get(field));
  }
  json rungs = json::array();
  for (FallbackRule& rule : copy.restart.fallback) {
    json& rung = rungs.emplace_back();
    for (const Field& field : fallback_fields(rule))
      std::visit([&](const auto& value) { rung[std::string(field.key)] = value; }, get(field));
  }
  if (!rungs.empty()) out["restart"]["fallback"] = std::move(rungs);
  for (DataSource& source : copy.data.sources) { // omitted if empty, as in specs of builds without
                                                 // mixtures
    json& at = out["data"]["source"].emplace_back(json::object());
    for (const Field& field : source_fields(source))
      std::visit([&](const auto& value) { at[std::string(field.key)] = value; }, get(field));
  }
  out["toggles"] = json(spec.toggles);
  if (spec.toggles.empty()) out["toggles"] = json::object();
  for (const GateRule& rule : copy.gates) { // omitted if empty, as in specs of builds without gates
    GateRule given = rule;
    json& at = out["gate"].emplace_back(json::object());
    for (const Field& field : gate_fields(given))
      if (is_given(field)) std::visit([&](const auto& v) { at[field.key] = v; }, get(field));
  }
  return out;
}

Result<RunSpec> from_json(const json& document) {
  RunSpec spec;
  const FieldTable fields = run_fields(spec);
  std::vector<std::string> wrong;
  if (!document.is_object()) return fail(ErrorCode::kCorrupt, "the spec is not a JSON object");
  const auto take = [&](const std::string& key, const json& value) {
    const Field* field = find_field(fields, key);
    const auto given = from_json_value(value);
    if (field == nullptr)
      wrong.push_back("unknown key " + key);
    else if (!given || !set(*field, *given))
      wrong.push_back(key + " must be " + expected(*field));
  };
  const auto take_rungs = [&](const json& list) {
    if (!list.is_array() || list.size() > kMostRungs)
      return wrong.push_back("restart.fallback must be a list of at most " +
                             std::to_string(kMostRungs) + " rungs");
    for (const json& rung : list) {
      const FieldTable keys = fallback_fields(spec.restart.fallback.emplace_back());
      if (!rung.is_object()) return wrong.push_back("a rung must be an object");
      for (const auto& [key, value] : rung.items()) {
        const Field* field = find_field(keys, key);
        const auto given = from_json_value(value);
        if (field == nullptr || !given || !set(*field, *given))
          wrong.push_back("restart.fallback: " + key + " is unknown or of another type");
      }
    }
  };
  const auto take_sources = [&](const json& list) {
    if (!list.is_array() || list.size() > kMostSources)
      return wrong.push_back("data.source must be a list of at most " +
                             std::to_string(kMostSources) + " data sets");
    for (const json& source : list) {
      const FieldTable keys = source_fields(spec.data.sources.emplace_back());
      if (!source.is_object()) return wrong.push_back("a data source must be an object");
      for (const auto& [key, value] : source.items()) {
        const Field* field = find_field(keys, key);
        const auto given = from_json_value(value);
        if (field == nullptr || !given || !set(*field, *given))
          wrong.push_back("data.source: " + key + " is unknown or of another type");
      }
    }
  };
  for (const auto& [name, value] : document.items()) {
    if (name == "toggles" && value.is_object()) {
      for (const auto& [toggle, text] : value.items()) {
        if (text.is_string())
          spec.toggles[toggle] = text.get<std::string>();
        else
          wrong.push_back("toggles." + toggle + " must be text");
      }
    } else if (name == "gate" && value.is_array()) {
      for (const json& table : value) {
        const FieldTable gate = gate_fields(spec.gates.emplace_back());
        for (const auto& [inner, inner_value] : table.items()) {
          const Field* field = find_field(gate, inner);
          const auto given = from_json_value(inner_value);
          if (field == nullptr || !given || !set(*field, *given))
            wrong.push_back("gate." + inner + " is unknown or of another type");
        }
      }
    } else if (value.is_object()) {
      for (const auto& [inner, inner_value] : value.items())
        if (name == "restart" && inner == "fallback")
          take_rungs(inner_value);
        else if (name == "data" && inner == "source")
          take_sources(inner_value);
        else
          take(name + "." + inner, inner_value);
    } else {
      take(name, value);
    }
  }
  if (wrong.empty()) return spec;
  return fail(ErrorCode::kInvalidArgument, "the resolved spec is wrong: " + join(wrong, "; "),
              "was it written by another version of nsad?");
}

std::string digest(const RunSpec& spec) {
  json document = to_json(spec);
  document.erase("run");
  return checksum_hex(document.dump());
}

} // namespace nsa::spec
