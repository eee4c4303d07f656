// Which collectives have measured a network, as the ledger and the API spell it.
#pragma once

#include "common/base/choice.h"

#include <cstdint>

namespace nsa::wire {

enum class MeasuredBy : uint8_t {
  kTcp,  // those of ranks on CPUs
  kNccl, // those of ranks on GPUs
};
constexpr auto choice_names(MeasuredBy) {
  return names_of("tcp", "nccl");
}

} // namespace nsa::wire
