// The locked folder in which a data set is written until it is complete. A preparation uses
// <output>.preparing. If it was not committed, the destructor removes it, or after a crash the next
// create(). A fetch uses <output>.fetching, which stays, so that the next fetch continues. One
// owner, one thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>

namespace nsa::dataset {

class WorkFolder {
public:
  // Error: kConflict if another living process is making the same output.
  static Result<WorkFolder> create(const std::filesystem::path& output);
  static Result<WorkFolder> create_or_continue(const std::filesystem::path& output);
  WorkFolder(WorkFolder&&) noexcept = default;
  WorkFolder& operator=(WorkFolder&&) noexcept = default;
  ~WorkFolder();

  const std::filesystem::path& path() const { return path_; }

  Status clear(); // removes its content

  // Renames the folder to the output. With `replace`, an existing output is exchanged and removed.
  // Otherwise an output that is not an empty folder is kConflict.
  Status commit(bool replace);

private:
  WorkFolder() = default;
  static Result<WorkFolder> lock(const std::filesystem::path& output, const char* ending);
  std::filesystem::path path_, output_;
  bool stays_ = false;
  UniqueFd lock_; // on the folder itself, so that no lock file remains
};

} // namespace nsa::dataset
