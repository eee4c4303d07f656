// Unicode normalisation forms (UAX 15), by utf8proc. Some tokenizers normalise text first. No I/O.
#pragma once

#include "common/base/choice.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::dataset {

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
constexpr auto choice_names(NormalForm) {
  return names_of("NFC", "NFD", "NFKC", "NFKD");
}

// Returns whether this build has utf8proc.
bool can_normalise();

// Invalid UTF-8 is not changed.
std::string normalised(std::string_view text, NormalForm form);

} // namespace nsa::dataset
