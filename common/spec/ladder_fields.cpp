// The keys of [[restart.fallback]]. They are in a separate file so that the worker, which reads
// them from JSON, does not load the TOML parser.
#include "common/spec/ladder_rules.h"

namespace nsa::spec {

FieldTable fallback_fields(FallbackRule& rule) {
  constexpr std::string_view kNever = "such a failure is never retried";
  return {
      {.key = "classes",
       .at = choices(rule.classes),
       .choices = {{"gpu-out-of-memory"},
                   {"host-out-of-memory"},
                   {"hardware"},
                   {"network"},
                   {"hang"},
                   {"stopped"},
                   {"non-finite"},
                   {"preemption"},
                   {"supervisor"},
                   {"crash"},
                   {"user-error", kNever},
                   {"data", kNever},
                   {"cuda-graphs", "the run continues without CUDA graphs by itself"}},
       .required = true,
       .meaning = "classes of failure that the rung answers (docs/runbook.md)"},
      {.key = "after",
       .at = &rule.after,
       .minimum = 1,
       .maximum = 1000,
       .meaning = "failures of these classes on the rung above before this rung is taken"},
      {.key = "set",
       .at = &rule.set,
       .maximum = 256,
       .meaning = "keys and their new values, such as \"parallel.compress=off\""},
      {.key = "ranks",
       .at = &rule.ranks,
       .minimum = 0,
       .maximum = 1023,
       .unit = "ranks",
       .meaning = "fewer ranks than parallel.ranks; train.accumulate grows to keep the global "
                  "batch; 0: as many as before"},
      {.key = "halve",
       .at = choice(rule.halve),
       .meaning = "micro_batch: halves train.micro_batch and doubles train.accumulate"},
      {.key = "shorten_sequences",
       .at = &rule.shorten_sequences,
       .meaning = "halves train.sequence_length, down to restart.shortest_sequence, and doubles "
                  "train.accumulate"},
  };
}

} // namespace nsa::spec
