// Disk space and files (inodes) reserved at start. If the disk runs out of either, nsad can still
// write the files of a stop or a restart. (The ledger reserves its own pages inside its files,
// ledger.h: no other program can take those.) One thread.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <filesystem>

namespace nsa::store {

class SpaceReserve {
public:
  SpaceReserve(std::filesystem::path file, uint64_t bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  // Makes the file with its blocks allocated, and a folder of empty files beside it. Fails with
  // kExhausted if the disk has too little space left.
  Status hold();
  // Releases the space. False: none was held.
  bool release();
  bool held() const { return held_; }

private:
  std::filesystem::path files() const { return file_.string() + "-files"; }
  Status hold_files();

  std::filesystem::path file_;
  uint64_t bytes_;
  bool held_ = false;
};

} // namespace nsa::store
