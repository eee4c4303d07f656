// The characters with which GPT-2's byte-level vocabularies represent bytes in tokenizer.json.
// Visible bytes represent themselves; the others use characters from U+0100 on. No I/O.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nsa::dataset {

std::string visible(std::string_view bytes);
// Returns nullopt if a character represents no byte.
std::optional<std::string> bytes_of_visible(std::string_view text);

} // namespace nsa::dataset
