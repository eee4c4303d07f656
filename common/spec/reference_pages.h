// The reference pages of docs/ that are generated from the tables: run-file.md, node-file.md,
// nsactl-file.md, toggles.md, predecessor.md. spec_test compares them, and writes them with
// NSA_UPDATE_DOCS=1. No I/O.
#pragma once

#include <string>
#include <vector>

namespace nsa::spec {

struct ReferencePage {
  std::string file; // for example "run-file.md"
  std::string text;
};

std::vector<ReferencePage> reference_pages();

} // namespace nsa::spec
