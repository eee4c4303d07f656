// A text file that is built into the program (cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace nsa {

struct EmbeddedFile {
  std::string_view name, text;
};

} // namespace nsa
