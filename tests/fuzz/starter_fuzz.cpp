// Messages between nsad and nsa-starter: the body of a job, and its answer. Each is refused with an
// error that names it, or is read. The answer of a child with the submitter's uid may contain
// anything.
#include "daemon/privilege/protocol.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  const auto body = privilege::parse_body(text);
  if (!body) fuzz::expect_error(body, "a job");
  const auto answer = privilege::parse_answer(text);
  if (answer) return 0;
  // Either the answer cannot be read, or it is the job's error in the job's words.
  fuzz::expect(answer.error().code <= ErrorCode::kInternal, "the code is one of ours");
  fuzz::expect(answer.error().what.size() < 5000, "an error is short");
  return 0;
}
