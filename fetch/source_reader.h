// The reading thread of a fetch. It reads files in order from a given place, and pushes batches of
// documents into a pipeline. One thread.
#pragma once

#include "common/base/clock.h"
#include "common/dataset/ordered_pipeline.h"
#include "common/dataset/tokenise.h"
#include "fetch/fetch.h"
#include "fetch/progress_file.h"

#include <stop_token>
#include <string>

namespace nsa::fetch {

// The place of the reader after a batch.
struct Placed {
  size_t file = 0;
  RowPlace place;
  double part = 0; // fraction of all files
};
struct RawPart {
  dataset::RawBatch batch;
  Placed end;
};
struct TokenPart {
  dataset::TokenBatch batch;
  Placed end;
};
using Pipeline = dataset::OrderedPipeline<RawPart, TokenPart>;

class SourceReader {
public:
  // Everything except the folder's name must outlive the reader.
  SourceReader(const FetchOptions& options, const Plan& plan, Http& http, std::string folder,
               Pipeline& pipeline, std::stop_token stop);

  // Fraction of the bytes of all files before this place.
  double part_of(size_t file, double within) const;
  Status read_all(size_t file, RowPlace place);

private:
  Result<bool> read_file(size_t index, RowPlace from); // false: the pipeline accepts no more
  Result<bool> read_rows(size_t index, Rows& rows);
  RawPart begin(size_t index);

  const FetchOptions& options_;
  const Plan& plan_;
  Http& http_;
  const std::string folder_;
  Pipeline& pipeline_;
  const std::stop_token stop_;
  double total_ = 0;
  MonotonicTime begun_; // when the batch was begun
};

} // namespace nsa::fetch
