// What a rank inherits from its shim: the link socket (descriptor 3) and the progress page (4).
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/progress/page.h"

namespace nsa::link {

struct Inherited {
  UniqueFd link;       // invalid when the rank was started by hand
  progress::Page page; // a private one when started by hand
  bool supervised = false;
};

// A rank is supervised when descriptor 4 is a progress page and descriptor 3 a stream socket; any
// other use of these numbers (a shell or an editor may hold them open) means that it was started by
// hand. kInvalidArgument when the page belongs to another rank or attempt.
Result<Inherited> take_inherited(Rank rank, AttemptNumber attempt);

} // namespace nsa::link
