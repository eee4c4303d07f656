// Asks NCCL's RAS service about a run's ranks (NCCL 2.24 and later; "RAS" in its user guide). A
// thread of NCCL in each rank watches the others; one of them answers on the port that
// NCCL_RAS_ADDR names. It is an independent witness: it knows nothing of nsad's progress pages.
//
// A question needs no thread, since this program forks. It is sent at once, and the answer is read
// later.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <string>
#include <string_view>

namespace nsa::shim::evidence {

class NcclRasQuestion {
public:
  // `address` is "127.0.0.1:<port>". Fails with kUnavailable if nobody listens there, as before
  // NCCL has started.
  static Result<NcclRasQuestion> ask(std::string_view address);

  // The whole answer, at most 1 MiB, or as much as came before the deadline. Fails with
  // kUnavailable if nothing came. RAS itself waits 5 s for processes that do not respond.
  Result<std::string> answer(MonotonicTime deadline);

private:
  explicit NcclRasQuestion(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

// The lines under "Errors" and "Warnings", in one clause of at most 600 bytes. "no errors, no
// warnings" if there are none. Empty for a text without these headings. Pure function.
std::string summarise_nccl_ras(std::string_view text);

} // namespace nsa::shim::evidence
