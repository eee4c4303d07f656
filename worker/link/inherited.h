// The descriptors that a rank inherits from its shim: the link socket (3) and the progress page
// (4).
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/page.h"

namespace nsa::link {

struct Inherited {
  UniqueFd link;       // invalid if a user started the rank by hand
  progress::Page page; // a private page if a user started the rank by hand
  bool supervised = false;
};

// A rank is supervised if descriptor 4 is a progress page and descriptor 3 a stream socket.
// Otherwise a user started it by hand, and a shell or an editor may hold these numbers open. Error:
// kInvalidArgument if the page belongs to another rank or attempt.
Result<Inherited> take_inherited(Rank rank, AttemptNumber attempt);

} // namespace nsa::link
