#include "worker/inference/needle_counter.h"

#include "common/dataset/needle_set.h"
#include "nsa_model/model/decode.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace nsa::inference {

namespace {

constexpr int64_t kDocumentPiece = 512; // logits of a piece are FP32 over the vocabulary

} // namespace

std::vector<int64_t> said_at_answers(model::LanguageModel& model, at::Device device,
                                     const NeedleDocument& document, int64_t vocabulary,
                                     const std::function<void()>& on_piece) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(document.tokens.size());
  model::DecodeState state = model.start_decoding(1, count);
  std::vector<int64_t> said;
  size_t next = 0;
  for (int64_t at = 0; at < count && next < document.answers.size(); at += kDocumentPiece) {
    const int64_t piece = std::min(kDocumentPiece, count - at);
    const at::Tensor ids =
        at::from_blob(const_cast<int64_t*>(document.tokens.data()) + at, {1, piece}, at::kLong)
            .clone()
            .to(device);
    const at::Tensor best =
        model.decode(state, ids).select(0, 0).narrow(1, 0, vocabulary).argmax(1).to(at::kCPU);
    on_piece();
    // The output at a position predicts the next token.
    for (; next < document.answers.size(); ++next) {
      const auto position = static_cast<int64_t>(document.answers[next]) - 1 - at;
      if (position >= piece) break;
      said.push_back(best[position].item<int64_t>());
    }
  }
  return said;
}

Result<NeedleCounter> NeedleCounter::open(const std::vector<data::Source>& sources, int64_t most) {
  NeedleCounter counter;
  for (const data::Source& source : sources) {
    if (!is_needle_set(source.dataset->manifest())) continue;
    NSA_TRY_ASSIGN(const auto tokenizer, source.dataset->load_tokenizer());
    counter.vocabulary_ = tokenizer->vocabulary_size();
    for (NeedleDocument& document : needle_documents(*source.dataset, *tokenizer, most))
      counter.documents_.push_back(std::move(document));
  }
  return counter;
}

std::vector<wire::NeedleCell> NeedleCounter::count(model::LanguageModel& model, at::Device device,
                                                   const std::function<void()>& on_piece) const {
  NeedleScore score;
  for (const NeedleDocument& document : documents_)
    score.add(document, said_at_answers(model, device, document, vocabulary_, on_piece));
  return score.cells();
}

} // namespace nsa::inference
