// The option --out FILE: writes a verb's result to a file of the user.
#pragma once

#include "common/base/file.h"

#include <string>

namespace nsa::cli {

inline Status write_out(const std::string& path, const std::string& text) {
  Status written = write_file_atomic(path, text, 0644, Survives::kProcessCrash);
  if (!written && written.error().next.empty())
    written.error().next = "name a file that can be written: --out FILE";
  return written;
}

} // namespace nsa::cli
