// The tokenizer of a checkpoint's model, for verbs that turn its tokens into text.
#pragma once

#include "cli/checkpoint_choice.h"
#include "cli/verb.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>
#include <optional>

namespace nsa::cli {

Option tokenizer_option(); // --tokenizer

// Empty for none: --tokenizer, which names a tokenizer or a tokenizer's file, else what the data
// set of the checkpoint says, where it still lies at its place.
Result<std::optional<dataset::TokenizerKind>>
find_tokenizer(const ChosenCheckpoint& chosen, const Arguments& arguments, const Context& context);
// What dataset::load_tokenizer() takes: the file that --tokenizer names, else the data set's copy
// of the tokenizer's file. Of GPT-2's merge ranks --ranks first, and where there is no copy
// ranks_file().
std::filesystem::path find_ranks(const ChosenCheckpoint& chosen,
                                 std::optional<dataset::TokenizerKind> kind,
                                 const Arguments& arguments, const Context& context);

} // namespace nsa::cli
