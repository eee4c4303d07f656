#include "common/wire/model_request.h"

namespace nsa::wire {

NSA_DEFINE_JSON(DataFolder, path, name, weight)
NSA_DEFINE_JSON(ModelRequest, task, checkpoint, spec, device, threads, prompt, tokenizer,
                ranks_file, tokens, temperature, top_p, seed, data, sequences, sequence_length,
                needles, ids, out)
NSA_DEFINE_JSON(ModelText, text)
NSA_DEFINE_JSON(PositionLoss, from, to, loss)
NSA_DEFINE_JSON(ModelEnd, done, device, seconds, prompt_tokens, tokens, prefill_seconds,
                end_of_document, loss, sequences, sequence_length, data_digest, positions, sources,
                needles)

} // namespace nsa::wire
