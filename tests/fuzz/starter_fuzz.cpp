// What travels between nsad and nsa-starter, body of a job and answer: refused with an error that
// names it, or read. An answer of a child that is the submitter's may hold anything.
#include "daemon/privilege/protocol.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  const auto body = privilege::parse_body(text);
  if (!body) fuzz::expect_error(body, "a job");
  const auto answer = privilege::parse_answer(text);
  if (answer) return 0;
  // Either the answer cannot be read, or it tells the error of the job, in that job's words.
  fuzz::expect(answer.error().code <= ErrorCode::kInternal, "the code is one of ours");
  fuzz::expect(answer.error().what.size() < 5000, "an error is short");
  return 0;
}
