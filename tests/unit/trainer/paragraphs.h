// A data set from one text. Each paragraph is a document, and a fifth of them is held out. One
// thread.
#pragma once

#include "common/dataset/dataset.h"
#include "common/dataset/prepare.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

namespace nsa::test {

inline auto paragraphs(TemporaryFolder& folder, const std::string& text) {
  dataset::PrepareOptions prepare;
  prepare.inputs = {folder.write("text.txt", text)};
  prepare.output = folder.path() / "data";
  prepare.tokenizer = dataset::TokenizerKind::kBytes;
  prepare.documents = dataset::DocumentUnit::kParagraph;
  prepare.heldout_fraction = 0.2;
  prepare.threads = 1;
  EXPECT_TRUE(dataset::prepare(prepare));
  return *dataset::Dataset::open(prepare.output, dataset::Check::kSizes);
}

} // namespace nsa::test
