#include "worker/rules/precision.h"

namespace nsa::train {

Result<Precision> choose_precision(const spec::PrecisionSection& precision,
                                   const std::string& why_bf16_is_slow) {
  Precision p;
  const bool slow = !why_bf16_is_slow.empty();
  if (precision.mode == spec::PrecisionMode::kFp32) {
    if (precision.compute == spec::Compute::kBf16)
      return fail(ErrorCode::kInvalidArgument,
                  "precision.mode = \"fp32\" and precision.compute = \"bf16\" exclude each other",
                  "use precision.mode = \"master\" for BF16 weights with FP32 masters");
    return p;
  }
  const bool pure = precision.mode == spec::PrecisionMode::kPure;
  if (pure || precision.mode == spec::PrecisionMode::kStochasticRounding) {
    // There are only BF16 weights, so computing in FP32 is impossible.
    if (precision.compute == spec::Compute::kFp32)
      return fail(ErrorCode::kInvalidArgument,
                  "precision.mode = \"" + spec::text_of(precision.mode) +
                      "\" has BF16 weights only, and precision.compute = \"fp32\" asks for others",
                  "leave precision.compute out, or use precision.mode = \"master\"");
    p.mode = pure ? PrecisionMode::kPure : PrecisionMode::kStochasticRounding;
    p.bf16 = true;
    if (pure)
      p.note = "BF16 weights and moments without masters: updates below half of BF16's resolution "
               "are lost, weight decay and norm gains among them";
    if (slow)
      p.note += (p.note.empty() ? "" : "; ") + std::string("computing in BF16 although ") +
                why_bf16_is_slow + ", which makes it slow";
    return p;
  }
  if (precision.compute == spec::Compute::kFp32) return p;
  if (precision.compute == spec::Compute::kAuto && slow) {
    p.note = "computing in FP32: " + why_bf16_is_slow +
             ", and BF16 matrix products would be slower than FP32 ones";
    return p;
  }
  p.bf16 = true;
  if (slow)
    p.note = "computing in BF16 because precision.compute asks for it, although " +
             why_bf16_is_slow + ", which makes it slow";
  return p;
}

} // namespace nsa::train
