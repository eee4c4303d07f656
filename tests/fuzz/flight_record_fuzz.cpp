// A rank's record of its collectives. Nothing from it may be long in the text that goes into an
// event.
#include "daemon/shim/evidence/flight_record.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const auto summary =
      shim::evidence::summarise_flight_record(fuzz::text_of(data, size), "collectives-0.json");
  if (!summary)
    fuzz::expect_error(summary, "collectives-0.json");
  else
    fuzz::expect(summary->size() < 1000, "a clause is short");
  return 0;
}
