// Disk space and files (inodes) set aside at start, so that on a disk that is full of either the
// files of stopping and restarting can still be written. (The ledger's own pages are reserved
// inside its files, ledger.h: nobody else can take those.) One thread.
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
