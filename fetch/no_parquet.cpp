// Replaces parquet.cpp in a build without Arrow.
#include "fetch/rows.h"

namespace nsa::fetch {

Result<std::unique_ptr<Rows>> open_parquet(ByteSource&, const RowsOptions& options, RowPlace) {
  return fail(ErrorCode::kUnsupported,
              options.name + " is a Parquet file, and this nsa-fetch was built without Arrow",
              "run tools/fetch-arrow and build again");
}

bool can_parquet() {
  return false;
}

} // namespace nsa::fetch
