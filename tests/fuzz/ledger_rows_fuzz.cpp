// Rows of the ledger as a start of nsad reads them: a run's spec and summary, and its events, which
// are applied to a state, within the limits on numbers that the reader of rows keeps.
// {"spec": ..., "summary": ..., "events": [[kind, body, attempt, shim_sequence, at], ...]}
#include "common/base/json.h"
#include "common/spec/spec_json.h"
#include "common/wire/api_types.h"
#include "common/wire/messages.h"
#include "daemon/state/apply.h"
#include "daemon/state/command.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

namespace {

// Returns a number of an event's row, or its usual value.
int64_t number(const nlohmann::json& row, size_t column, int64_t usually, int64_t most) {
  if (row.size() <= column || !row[column].is_number_integer()) return usually;
  return std::clamp(row[column].get<int64_t>(), int64_t{0}, most);
}

} // namespace

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
    if (!event.is_array() || event.size() < 2 || !event[0].is_string()) continue;
    auto body = state::body_from_json(event[0].get<std::string>(), event[1]);
    if (!body) continue;
    const auto attempt = static_cast<AttemptNumber>(number(event, 2, 1, 1'000'000'000));
    const auto sequence = static_cast<uint64_t>(number(event, 3, 0, INT64_MAX));
    now = number(event, 4, now + 1'000'000'000, int64_t{1} << 62);
    auto applied = state::apply(std::move(state), {"k3fm2", attempt, sequence, std::move(*body)},
                                WallTime{now});
    state = std::move(applied.state);
  }
  (void)state::pending_commands(state);
  return 0;
}
