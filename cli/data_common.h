// What the `data` verbs share. They work on files alone and need no daemon.
#pragma once

#include "cli/verb.h"
#include "common/dataset/manifest.h"

#include <filesystem>

namespace nsa::cli {

// GPT-2's merge ranks: --ranks, else where an installation or a checkout keeps them. The path need
// not exist: who loads it says how to get it.
std::filesystem::path ranks_file(const Arguments& arguments, const Context& context);
Option ranks_option();

// The manifest in a dozen lines.
void print_summary(const dataset::Manifest& manifest, const std::filesystem::path& folder, Io& io);

} // namespace nsa::cli
