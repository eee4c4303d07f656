#include "bench/arguments/attention_options.h"

namespace nsa::bench {

std::vector<Option> with_attention_options(std::vector<Option> own, AttentionOptions& shared) {
  std::vector<Option> options = {
      {"--groups", "N", "KV groups; 2", into(shared.groups)},
      {"--heads", "N", "query heads a group, 1 to 16; 6", into(shared.heads)},
      {"--no-dense", "", "leave dense attention out", into(shared.dense, false)},
      {"--repeats", "N", "of a row; 20", into(shared.repeats)},
      {"--row-seconds", "S", "fewer repeats, but five, where they take longer; 1",
       into(shared.row_seconds)},
      {"--seconds", "S", "rows that would begin later are left out; 120", into(shared.seconds)},
      {"--json", "", "an object a line, the machine first", into(shared.json)},
      {"--library", "FILE", "libnsa_ops_cuda.so, if neither beside the program nor in ../lib",
       into(shared.library)}};
  own.insert(own.end(), options.begin(), options.end());
  return own;
}

} // namespace nsa::bench
