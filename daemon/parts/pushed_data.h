// A data set that the head sends: a node keeps it under the path that it has on the head, so that
// run files need no second one. Blocking; one call for a folder at a time.
#pragma once

#include "common/transfer/receive.h"
#include "daemon/parts/messages.h"

namespace nsa::parts {

// The files of a data set, for whom it is sent to; the shards' checksums are those of its manifest.
// kNotFound, kCorrupt: there is no data set.
Result<Push> describe_data(const std::string& path);

// kConflict: something else lies there. A copy that is the same data set is read through, and is
// left alone if it is good: ranks may read it.
Result<transfer::Received> fill_data_folder(const Push& push, transfer::Source& source);

} // namespace nsa::parts
