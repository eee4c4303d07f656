// A data set that the head sends. A node keeps it under the same path as on the head, so run files
// need only one path. The functions block. Only one call for a folder at a time.
#pragma once

#include "common/transfer/receive.h"
#include "daemon/parts/messages.h"

namespace nsa::parts {

// The files of a data set, for the node that receives it. The shards' checksums are those of its
// manifest. Fails with kNotFound or kCorrupt if there is no valid data set.
Result<Push> describe_data(const std::string& path);

// Fails with kConflict if something else is at the path. An existing copy of the same data set is
// read and left unchanged if it is good, because ranks may be reading it.
Result<transfer::Received> fill_data_folder(const Push& push, transfer::Source& source);

} // namespace nsa::parts
