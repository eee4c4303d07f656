#include "worker/inference/generate.h"

#include "common/base/clock.h"
#include "nsa_model/model/decode.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace nsa::inference {

namespace {

// Tokens of one piece of a prompt. ATen operations need memory for scores, which grows with it.
constexpr int64_t kPrefillPiece = 512;

at::Tensor tokens_on(at::Device device, const int64_t* ids, int64_t count) {
  return at::from_blob(const_cast<int64_t*>(ids), {1, count}, at::kLong).clone().to(device);
}

// Returns the logits of the last position, FP32 on the host.
at::Tensor last_logits(const at::Tensor& logits, int64_t vocabulary) {
  return logits.select(1, logits.size(1) - 1)
      .select(0, 0)
      .narrow(0, 0, vocabulary)
      .to(at::kCPU, at::kFloat)
      .contiguous();
}

} // namespace

Generated generate(model::LanguageModel& model, at::Device device, const Generation& what,
                   const std::function<void(int64_t token)>& on_token) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(what.prompt.size());
  const int64_t vocabulary = what.vocabulary > 0 ? what.vocabulary : model.config().vocabulary;
  model::DecodeState state = model.start_decoding(1, count + what.tokens);
  TokenSampler sampler(what.rule);
  Generated result;
  const MonotonicTime begin = MonotonicTime::now();
  at::Tensor logits;
  const int64_t piece = model.prefills_at_once(1, count) ? count : kPrefillPiece;
  for (int64_t at = 0; at < count; at += piece)
    logits =
        model.decode(state, tokens_on(device, what.prompt.data() + at, std::min(piece, count - at)),
                     model::LanguageModel::Logits::kLast);
  at::Tensor host = last_logits(logits, vocabulary);
  const MonotonicTime prefilled = MonotonicTime::now();
  result.prefill_seconds = to_seconds(prefilled - begin);
  while (result.tokens < what.tokens) {
    const int64_t token =
        sampler.next({host.const_data_ptr<float>(), static_cast<size_t>(vocabulary)});
    if (token == what.end) {
      result.ended = true;
      break;
    }
    ++result.tokens;
    on_token(token);
    if (result.tokens == what.tokens) break;
    host = last_logits(model.decode(state, tokens_on(device, &token, 1)), vocabulary);
  }
  result.decode_seconds = to_seconds(MonotonicTime::now() - prefilled);
  return result;
}

} // namespace nsa::inference
