// The characters by which GPT-2's byte-level vocabularies write bytes, in tokenizer.json: bytes
// that can be seen keep theirs, the others take those from U+0100 on. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nsa::dataset {

std::string visible(std::string_view bytes);
// Nothing when a character stands for no byte.
std::optional<std::string> bytes_of_visible(std::string_view text);

} // namespace nsa::dataset
