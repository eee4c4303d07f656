// Bodies of requests as nsad reads them, and answers as nsactl reads them. Each is refused, or
// becomes a value of the type that can be printed again.
#include "common/wire/api_types.h"
#include "common/wire/messages.h"
#include "common/wire/run_row.h"
#include "tests/fuzz/fuzz.h"

namespace {

template <class... T> void read_as(const nlohmann::json& json) {
  const auto read = [&]<class One>(One*) {
    if (const auto value = nsa::wire::body_as<One>(json))
      (void)nlohmann::json(*value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  (read(static_cast<T*>(nullptr)), ...);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  using namespace nsa::wire;
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto rows = read_rows(text)) {
    for (const RunSummary& run : *rows)
      (void)to_row(run).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else {
    fuzz::expect_error(rows, "nsad's");
  }
  const auto json = parse_json(text, "the request's body");
  if (!json) {
    fuzz::expect_error(json, "the request's body");
    return 0;
  }
  read_as<SubmitRequest, ResumeRequest, SubmitReply, ErrorView, RunSummary, RunDetail, RankView,
          AttemptView, CheckpointView, EventView, LogLine, FollowLine>(*json);
  return 0;
}
