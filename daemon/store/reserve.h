// Disk space and files (inodes) reserved at start. On a disk that is full of either, nsad can then
// still write the files of a stop or a restart. (The ledger reserves its own pages inside its
// files, ledger.h: no other program can take those.) One thread.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <filesystem>

namespace nsa::store {

class SpaceReserve {
public:
  SpaceReserve(std::filesystem::path file, uint64_t bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  // Makes the file with its blocks allocated, and a folder of empty files beside it. kExhausted:
  // the disk has not that much left.
  Status hold();
  // Gives the space back. False: there was none to give.
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
