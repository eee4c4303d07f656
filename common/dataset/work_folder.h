// The locked folder in which a data set is written until everything is complete: <output>.preparing
// of a preparation, which is removed if it was not committed, by the destructor or after a crash by
// the next create(); or <output>.fetching of a fetch, which stays, so that the next one continues.
// One owner, one thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>

namespace nsa::dataset {

class WorkFolder {
public:
  // kConflict when another living process is making the same output.
  static Result<WorkFolder> create(const std::filesystem::path& output);
  static Result<WorkFolder> create_or_continue(const std::filesystem::path& output);
  WorkFolder(WorkFolder&&) noexcept = default;
  WorkFolder& operator=(WorkFolder&&) noexcept = default;
  ~WorkFolder();

  const std::filesystem::path& path() const { return path_; }

  Status clear(); // removes what lies in it

  // Gives the folder its name. What stood there is swapped out and removed when `replace`;
  // otherwise an output that exists and is not an empty folder is kConflict.
  Status commit(bool replace);

private:
  WorkFolder() = default;
  static Result<WorkFolder> lock(const std::filesystem::path& output, const char* ending);
  std::filesystem::path path_, output_;
  bool stays_ = false;
  UniqueFd lock_; // on the folder itself: the lock goes with it and leaves no file behind
};

} // namespace nsa::dataset
