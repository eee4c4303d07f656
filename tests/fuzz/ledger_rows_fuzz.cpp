// Rows of the ledger as a start of nsad reads them: a run's spec and summary, and its events, which
// are applied to a state. {"spec": ..., "summary": ..., "events": [[kind, body], ...]}
#include "common/base/json.h"
#include "common/spec/spec_json.h"
#include "common/wire/api_types.h"
#include "common/wire/messages.h"
#include "daemon/state/apply.h"
#include "daemon/state/command.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const auto tree = parse_json(fuzz::text_of(data, size), "ledger.db");
  if (!tree || !tree->is_object()) return 0;
  const nlohmann::json none;
  if (const auto spec = spec::from_json(tree->value("spec", none)))
    fuzz::expect(spec::from_json(spec::to_json(*spec)).has_value(), "a spec reads back");
  (void)wire::body_as<wire::RunSummary>(tree->value("summary", none));
  state::State state;
  int64_t now = 1'000'000'000;
  for (const nlohmann::json& event : tree->value("events", nlohmann::json::array())) {
    if (!event.is_array() || event.size() != 2 || !event[0].is_string()) continue;
    auto body = state::body_from_json(event[0].get<std::string>(), event[1]);
    if (!body) continue;
    auto applied = state::apply(std::move(state), {"k3fm2", 1, 0, std::move(*body)}, WallTime{now});
    state = std::move(applied.state);
    now += 1'000'000'000;
  }
  (void)state::pending_commands(state);
  return 0;
}
