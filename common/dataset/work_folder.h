// The locked folder <output>.preparing, in which a preparation writes until everything is complete.
// One owner, one thread. The destructor removes it if it was not committed. After a crash the next
// create() of the same output removes it.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>

namespace nsa::dataset {

class WorkFolder {
public:
  // kConflict when another living process is making the same output.
  static Result<WorkFolder> create(const std::filesystem::path& output);
  WorkFolder(WorkFolder&&) noexcept = default;
  WorkFolder& operator=(WorkFolder&&) noexcept = default;
  ~WorkFolder();

  const std::filesystem::path& path() const { return path_; }

  // Gives the folder its name. What stood there is swapped out and removed when `replace`;
  // otherwise an output that exists and is not an empty folder is kConflict.
  Status commit(bool replace);

private:
  WorkFolder() = default;
  std::filesystem::path path_, output_;
  UniqueFd lock_; // on the folder itself: the lock goes with it and leaves no file behind
};

} // namespace nsa::dataset
