#include "tests/support/test_paths.h"

namespace nsa::test {

std::string source_folder() {
  return NSA_SOURCE_DIR;
}

std::string program_folder() {
  return NSA_BINARY_DIR "/bin";
}

std::string library_folder() {
  return NSA_BINARY_DIR "/lib";
}

} // namespace nsa::test
