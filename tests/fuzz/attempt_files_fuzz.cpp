// launch.json, started.json and exit-N.json of an attempt's folder, and evidence.json. Each is
// refused with an error that names the file, or becomes a value that prints and reads as the same
// value.
#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/shim/client/client.h"
#include "tests/fuzz/fuzz.h"

namespace {

template <class T> void read_as(std::string_view text) {
  using namespace nsa;
  const auto value = wire::parse_body<T>(text, "fuzz.json");
  if (!value) return fuzz::expect_error(value, "fuzz.json");
  const std::string printed =
      nlohmann::json(*value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto again = wire::parse_body<T>(printed, "printed", {.bytes = printed.size()});
  fuzz::expect(again && nlohmann::json(*again) == nlohmann::json(*value), "reads the same");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = nsa::fuzz::text_of(data, size);
  read_as<nsa::wire::LaunchPlan>(text);
  read_as<nsa::shim::StartedAttempt>(text);
  read_as<nsa::wire::RankExited>(text);
  read_as<nsa::wire::EvidenceTaken>(text);
  return 0;
}
