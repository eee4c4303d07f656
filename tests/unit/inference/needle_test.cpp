// Needle documents as nsa-fetch makes them, and their score.
#include "worker/inference/needle.h"

#include "common/dataset/needle_set.h"
#include "fetch/fetch.h"
#include "fetch/synthetic.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>

namespace nsa::inference {
namespace {

using dataset::is_needle_set;
using testing::ElementsAre;

TEST(Needle, IsFoundInEveryDocumentThatIsMade) {
  fetch::Synthetic set;
  set.kind = fetch::Synthetic::Kind::kNeedle;
  for (const int64_t length : {128, 300, 4096}) {
    set.length = length;
    for (int64_t number = 0; number < 200; ++number) {
      const std::string text = fetch::make_document(set, number);
      const auto needle = find_needle(text);
      ASSERT_TRUE(needle) << text;
      EXPECT_EQ(needle->digits, 6u);
      EXPECT_EQ(text.substr(needle->told, 12), "The code of ");
      const std::string code = text.substr(needle->answer, 6);
      EXPECT_NE(text.substr(needle->told, 30).find(code), std::string::npos);
      EXPECT_EQ(text.substr(needle->answer + 6), ".");
    }
  }
}

TEST(Needle, OtherTextHasNone) {
  EXPECT_FALSE(find_needle(""));
  EXPECT_FALSE(find_needle("What is the code of abc? It is 123."));
  EXPECT_FALSE(find_needle("The code of abc is 124. What is the code of abc? It is 123."));
  EXPECT_FALSE(find_needle("The code of abc is 123. What is the code of abc? It is 123"));
  EXPECT_TRUE(find_needle("The code of abc is 123. What is the code of abc? It is 123."));
}

class NeedleSet : public ::testing::Test {
protected:
  void SetUp() override {
    fetch::FetchOptions options;
    options.sources = {"synthetic:needle,length=256,documents=300",
                       "synthetic:needle,length=512,documents=300"};
    options.prepare.output = folder_.path() / "data";
    options.prepare.tokenizer = dataset::TokenizerKind::kBytes;
    options.prepare.heldout_fraction = 0.3;
    const auto made = fetch::fetch(options, {}, {});
    ASSERT_TRUE(made) << made.error().what;
    data_ = dataset::Dataset::open(options.prepare.output, dataset::Check::kSizes).value();
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const dataset::Dataset> data_;
};

TEST_F(NeedleSet, DocumentsAreWholeAndOfEachLength) {
  EXPECT_TRUE(is_needle_set(data_->manifest()));
  EXPECT_FALSE(is_needle_set({}));
  const auto tokenizer = dataset::make_byte_tokenizer();
  EXPECT_EQ(needle_documents(*data_, *tokenizer, 0).size(), 0u);
  EXPECT_EQ(needle_documents(*data_, *tokenizer, 10'000).size(),
            static_cast<size_t>(data_->manifest().heldout_documents));
  const auto documents = needle_documents(*data_, *tokenizer, 40);
  ASSERT_EQ(documents.size(), 40u);
  std::map<int64_t, int> lengths;
  for (const NeedleDocument& document : documents) {
    ++lengths[document.length];
    EXPECT_EQ(document.tokens.size(), static_cast<size_t>(document.length) + 1);
    EXPECT_EQ(document.tokens[0], 256);
    ASSERT_EQ(document.answers.size(), 6u);
    EXPECT_EQ(document.answers.back(), document.tokens.size() - 2); // the full stop is last
    EXPECT_GE(document.depth, 0);
    EXPECT_LE(document.depth, 1);
  }
  EXPECT_GT(lengths[256], 10);
  EXPECT_GT(lengths[512], 10);
}

TEST_F(NeedleSet, ACodeCountsWhenAllOfItIsSaid) {
  const auto tokenizer = dataset::make_byte_tokenizer();
  NeedleScore score;
  int64_t asked = 0, right = 0;
  for (const NeedleDocument& document : needle_documents(*data_, *tokenizer, 100)) {
    std::vector<int64_t> said;
    for (const size_t answer : document.answers)
      said.push_back(document.tokens[answer]);
    const bool correct = document.length == 256 && document.depth < 0.4;
    if (!correct) said[3] = said[3] == '0' ? '1' : '0';
    score.add(document, said);
    ++asked;
    right += correct;
  }
  int64_t counted = 0, found = 0;
  for (const wire::NeedleCell& cell : score.cells()) {
    counted += cell.asked;
    found += cell.found;
    EXPECT_EQ(cell.found, cell.length == 256 && cell.depth_to <= 0.4 ? cell.asked : 0);
    EXPECT_NEAR(cell.depth_to - cell.depth_from, 0.2, 1e-12);
  }
  EXPECT_EQ(counted, asked);
  EXPECT_EQ(found, right);
  EXPECT_GT(right, 5);
  score = {};
  NeedleDocument cut;
  cut.answers = {1, 2};
  cut.tokens = {256, 5, 6};
  score.add(cut, std::vector<int64_t>{5});
  ASSERT_EQ(score.cells().size(), 1u);
  EXPECT_EQ(score.cells()[0].found, 0) << "a code that was not said to its end";
}

} // namespace
} // namespace nsa::inference
