#include "common/spec/reference_pages.h"

#include "common/base/file.h"
#include "tests/support/test_paths.h"

#include <cstdlib>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

// NSA_UPDATE_DOCS=1 writes the pages.
TEST(ReferencePages, TheCommittedOnesAreThese) {
  for (const ReferencePage& page : reference_pages()) {
    const std::string path = test::source_folder() + "/docs/" + page.file;
    if (std::getenv("NSA_UPDATE_DOCS") != nullptr) {
      ASSERT_TRUE(write_file_atomic(path, page.text));
      continue;
    }
    const auto committed = nsa::read_file(path);
    ASSERT_TRUE(committed) << committed.error().what;
    EXPECT_EQ(*committed, page.text) << page.file << ": run NSA_UPDATE_DOCS=1 spec_test";
  }
}

} // namespace
} // namespace nsa::spec
