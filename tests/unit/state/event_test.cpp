// Events as the ledger's rows return them. An event is refused if it contains a number beyond the
// range of the state machine.
#include "common/base/json.h"
#include "daemon/state/event.h"

#include <gtest/gtest.h>

namespace nsa::state {
namespace {

std::string refusal_of(std::string_view kind, const nlohmann::json& body) {
  const auto event = body_from_json(kind, body);
  return event ? "" : event.error().what;
}

TEST(EventFromRow, TakesWhatARunFileCanAskFor) {
  const nlohmann::json policy = {{"window_seconds", 1e8}, {"delay_seconds", 86400.0}};
  EXPECT_EQ(refusal_of("submitted", {{"ranks", 4096}, {"policy", policy}}), "");
}

TEST(EventFromRow, RefusesNumbersOfRanksThatNoRunHas) {
  for (const char* kind : {"submitted", "resume_requested", "run_recovered"})
    for (const int ranks : {-1, 4097, 2147483647})
      EXPECT_EQ(refusal_of(kind, {{"ranks", ranks}}),
                std::string(kind) + " event: " + std::to_string(ranks) + " ranks");
}

// C++ does not define the conversion of such a number to an integer. common/base/json.h refuses it.
TEST(EventFromRow, RefusesIntegersBeyondTheirRange) {
  EXPECT_NE(refusal_of("shim_started", {{"boot_id", "b"}, {"pid", 5e35}}), "");
  EXPECT_EQ(refusal_of("shim_started", {{"boot_id", "b"}, {"pid", 5}}), "");
}

// These durations are added to a time, and the sum would overflow.
TEST(EventFromRow, RefusesTimesThatLeaveTheRangeOfTheClock) {
  for (const char* name : {"window_seconds", "delay_seconds", "max_delay_seconds",
                           "evidence_seconds", "stop_grace_seconds"})
    for (const double seconds : {-1.0, 1.1e8, 1e300})
      EXPECT_EQ(refusal_of("submitted", {{"policy", {{name, seconds}}}}),
                "submitted event: a time of its restart policy is negative or longer than three "
                "years")
          << name;
}

// A later nsad may write an unknown class. This nsad would never take the rung, and would not say
// so.
TEST(EventFromRow, RefusesALadderWithAnUnknownClassOfFailure) {
  const auto ladder_of = [](const char* failure) {
    return nlohmann::json{{"ladder", {{"rungs", {{{"classes", {failure}}}}}}}};
  };
  EXPECT_EQ(refusal_of("submitted", ladder_of("cosmic-ray")),
            "submitted event: unknown text: \"cosmic-ray\"");
  EXPECT_EQ(refusal_of("submitted", ladder_of("hang")),
            "submitted event: its ladder cannot be composed")
      << "the class is known, and the keys that it lacks are the next mistake";
}

} // namespace
} // namespace nsa::state
