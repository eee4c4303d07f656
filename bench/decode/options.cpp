#include "bench/decode/options.h"

#include <algorithm>

namespace nsa::bench {

CommandLine decode_command(DecodeOptions& o) {
  return {
      "nsa-bench decode",
      "Attention of one layer in one decoding step on this GPU: a token for each sequence, over\n"
      "caches in BF16. Beside it dense attention over as many keys by PyTorch's\n"
      "scaled_dot_product_attention, the fastest of its backends.",
      "",
      with_attention_options(
          {{"--context", "N,...", "tokens of each sequence; 4,096 to 131,072 unless given",
            into(o.contexts)},
           {"--batch", "N,...", "sequences; 1,64", into(o.batches)}},
          o),
      {"", "--context 32768 --batch 1,8,64", "--json --no-dense"}};
}

int64_t keys_read(int64_t context) {
  constexpr int64_t kStride = 16, kSelected = 1024, kWindow = 512;
  return context / kStride + std::min(context, kSelected) + std::min(context, kWindow);
}

double bytes_read(int64_t context, int64_t batch, int64_t groups, int64_t head_dimension) {
  constexpr int64_t kKeyAndValue = 2, kBf16 = 2;
  return double(keys_read(context) * kKeyAndValue * kBf16 * head_dimension * groups * batch);
}

} // namespace nsa::bench
