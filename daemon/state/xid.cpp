#include "daemon/state/xid.h"

#include <array>

namespace nsa::state {

namespace {
struct Known {
  uint64_t number;
  const char* text;
  bool hardware;
};
constexpr std::array kKnown = {
    Known{13, "graphics engine exception", false},
    Known{31, "memory page fault", false},
    Known{32, "invalid or corrupted push buffer", false},
    Known{43, "GPU stopped processing", false},
    Known{45, "preemptive cleanup after a program ended", false},
    Known{48, "double-bit ECC error", true},
    Known{61, "internal micro-controller breakpoint or warning", false},
    Known{62, "internal micro-controller halt", true},
    Known{63, "ECC page retirement or row remapping recorded", false},
    Known{64, "ECC page retirement or row remapping failed", true},
    Known{68, "NVDEC exception", false},
    Known{69, "graphics engine class error", false},
    Known{74, "NVLink error", true},
    Known{79, "GPU has fallen off the bus", true},
    Known{92, "high rate of single-bit ECC errors", false},
    Known{94, "contained ECC error", true},
    Known{95, "uncontained ECC error", true},
    Known{109, "context switch timeout", false},
    Known{119, "GSP does not answer", true},
    Known{120, "GSP error", true},
    Known{140, "unrecovered ECC error", true},
    Known{143, "GPU initialisation error", true},
    Known{144, "NVLink: link error", false},
    Known{145, "NVLink: link error", false},
    Known{146, "NVLink: link error", false},
    Known{147, "NVLink: link error", false},
    Known{148, "NVLink: link error", false},
    Known{149, "NVLink: link error", false},
    Known{150, "NVLink: link error", false},
    Known{154, "GPU recovery action changed", false},
};
} // namespace

XidMeaning xid_meaning(uint64_t number) {
  for (const Known& known : kKnown)
    if (known.number == number) return {known.text, known.hardware};
  return {"Xid " + std::to_string(number), false};
}

std::vector<uint64_t> hardware_xids() {
  std::vector<uint64_t> numbers;
  for (const Known& known : kKnown)
    if (known.hardware) numbers.push_back(known.number);
  return numbers;
}

} // namespace nsa::state
