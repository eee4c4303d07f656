// The tokenizer of a checkpoint's model, for verbs that convert its tokens to text.
#pragma once

#include "cli/checkpoint_choice.h"
#include "cli/verb.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>
#include <optional>

namespace nsa::cli {

Option tokenizer_option(); // the option --tokenizer

// Returns the tokenizer that --tokenizer names, by a name or a file. Otherwise it returns the one
// of the checkpoint's data set, if that still exists at its place. Empty if there is none.
Result<std::optional<dataset::TokenizerKind>>
find_tokenizer(const ChosenCheckpoint& chosen, const Arguments& arguments, const Context& context);
// Returns the file for dataset::load_tokenizer(): the one that --tokenizer names, or else the data
// set's copy. For GPT-2's merge ranks --ranks comes first, and ranks_file() is used if there is no
// copy.
std::filesystem::path find_ranks(const ChosenCheckpoint& chosen,
                                 std::optional<dataset::TokenizerKind> kind,
                                 const Arguments& arguments, const Context& context);

} // namespace nsa::cli
