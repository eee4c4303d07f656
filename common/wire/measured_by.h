// The kind of collectives that measured a network, as stored in the ledger and sent in the API.
#pragma once

#include "common/base/choice.h"

#include <cstdint>

namespace nsa::wire {

enum class MeasuredBy : uint8_t {
  kTcp,  // collectives of ranks on CPUs
  kNccl, // collectives of ranks on GPUs
};
constexpr auto choice_names(MeasuredBy) {
  return names_of("tcp", "nccl");
}

} // namespace nsa::wire
