// Whether a run can begin with the weights of another run. The rules get plain values.
#include "daemon/requests/origin_rules.h"

#include "common/estimate/estimate.h"
#include "common/spec/fields.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace nsa::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const spec::Origin kOrigin{"kaaaa", 400};

std::vector<std::string> keys_of(const std::vector<Misfit>& misfits) {
  std::vector<std::string> keys;
  for (const Misfit& misfit : misfits)
    keys.push_back(misfit.key);
  return keys;
}

TEST(Origin, IsAnIdAndAStep) {
  EXPECT_EQ(spec::parse_origin("kaaaa@400"), kOrigin);
  EXPECT_EQ(spec::text_of(kOrigin), "kaaaa@400");
  for (const char* wrong : {"", "kaaaa", "kaaaa@", "@400", "long-name@400", "kaaaa@-1", "kaaaa@4x",
                            "kaaaa@ 4", "kaaaa@4@4", "kaaaa@1234567890123456"})
    EXPECT_FALSE(spec::parse_origin(wrong)) << wrong;
}

TEST(Origin, AModelOfTheSameShapeFits) {
  spec::RunSpec parent, child;
  child.train.sequence_length = 4096; // keys that determine no shape may change
  child.nsa.window = 1024;
  child.nsa.selected_blocks = 32;
  child.model.rope_base = 500000;
  child.precision.mode = spec::PrecisionMode::kFp32;
  std::swap(child.nsa.branches.front(), child.nsa.branches.back());
  EXPECT_THAT(shape_misfits(kOrigin, parent, child), IsEmpty());
}

TEST(Origin, EachKeyOfAnotherShapeIsNamedWithBothValues) {
  spec::RunSpec parent, child;
  child.model.layers = 2;
  child.nsa.gate = spec::Gate::kHeadSigmoid;
  const auto misfits = shape_misfits(kOrigin, parent, child);
  EXPECT_THAT(keys_of(misfits), ElementsAre("model.layers", "nsa.gate"));
  EXPECT_EQ(misfits.at(0).what, "is 2, and the weights of run kaaaa are of a model with 12");
  EXPECT_THAT(misfits.at(0).next, HasSubstr("set model.layers = 12"));
  EXPECT_THAT(misfits.at(1).next, HasSubstr("set nsa.gate = \"group_softmax\""));
}

TEST(Origin, OnlyWhatBothModelsHaveIsCompared) {
  spec::RunSpec nsa, dense;
  dense.model.attention = spec::Attention::kDense;
  dense.nsa.gate = spec::Gate::kHeadSigmoid;
  EXPECT_THAT(keys_of(shape_misfits(kOrigin, nsa, dense)), ElementsAre("model.attention"));
  spec::RunSpec other = dense;
  other.nsa.compression = spec::Compression::kMlp;
  EXPECT_THAT(shape_misfits(kOrigin, dense, other), IsEmpty()) << "[nsa] has no effect there";
  spec::RunSpec longer = nsa;
  longer.nsa.compression_block = 64;
  EXPECT_THAT(shape_misfits(kOrigin, nsa, longer), IsEmpty()) << "an average has no weights";
  nsa.nsa.compression = longer.nsa.compression = spec::Compression::kMlp;
  EXPECT_THAT(keys_of(shape_misfits(kOrigin, nsa, longer)), ElementsAre("nsa.compression_block"));
}

// If a new key of the model changes the number of parameters, this test fails until the key is
// listed.
TEST(Origin, EveryKeyThatChangesTheNumberOfParametersIsAShape) {
  spec::RunSpec before;
  before.nsa.compression = spec::Compression::kMlp;
  const auto listed = shape_keys(before);
  int changed = 0;
  for (const std::string& key : spec::field_keys(spec::run_fields(before))) {
    if (!key.starts_with("model.") && !key.starts_with("nsa.")) continue;
    spec::RunSpec after = before;
    const spec::FieldTable fields = spec::run_fields(after);
    const spec::Field& field = *spec::find_field(fields, key);
    for (const spec::Value& value :
         {spec::Value(int64_t{96}), spec::Value("dense"), spec::Value("average"),
          spec::Value("head_sigmoid"), spec::Value(std::vector<std::string>{"sliding"})}) {
      if (!spec::set(field, value)) continue;
      if (estimate::parameters(after).total() == estimate::parameters(before).total()) continue;
      ++changed;
      EXPECT_NE(std::find(listed.begin(), listed.end(), key), listed.end()) << key;
    }
  }
  EXPECT_GE(changed, 9);
}

TEST(Origin, TheTextIsOfTheSameTokenizer) {
  dataset::Manifest bytes, same, other;
  bytes.digest = "1";
  bytes.tokenizer = {"bytes", "b", 257, 256};
  same = other = bytes;
  same.digest = "2";
  other.digest = "3";
  other.tokenizer = {"gpt2", "g", 50'257, 50'256};
  EXPECT_FALSE(tokenizer_misfit(kOrigin, bytes, "1", same));
  EXPECT_FALSE(tokenizer_misfit(kOrigin, std::nullopt, "1", bytes)) << "it is the same data set";
  const auto misfit = tokenizer_misfit(kOrigin, bytes, "1", other);
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->key, "data.path");
  EXPECT_EQ(misfit->what, "has text of tokenizer gpt2, and run kaaaa was trained with bytes");
  EXPECT_THAT(misfit->next, HasSubstr("--tokenizer bytes"));
  const auto gone = tokenizer_misfit(kOrigin, std::nullopt, "1", other);
  ASSERT_TRUE(gone);
  EXPECT_THAT(gone->what, HasSubstr("cannot be read"));
  other.tokenizer.name = "bytes";
  EXPECT_THAT(tokenizer_misfit(kOrigin, bytes, "1", other)->what, HasSubstr("with other tokens"));
}

TEST(Origin, AStepThatIsNotKeptListsThoseThatAre) {
  EXPECT_FALSE(step_misfit(kOrigin, {500, 400}));
  EXPECT_THAT(step_misfit(kOrigin, {500, 300})->what, HasSubstr("it keeps 500, 300"));
  EXPECT_EQ(step_misfit(kOrigin, {})->key, "origin.checkpoint");
}

} // namespace
} // namespace nsa::control
