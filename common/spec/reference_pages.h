// The reference pages of docs/ that are made from the tables: run-file.md, node-file.md,
// toggles.md, predecessor.md. spec_test compares them, and with
// NSA_UPDATE_DOCS=1 writes them. Pure.
#pragma once

#include <string>
#include <vector>

namespace nsa::spec {

struct ReferencePage {
  std::string file; // "run-file.md"
  std::string text;
};

std::vector<ReferencePage> reference_pages();

} // namespace nsa::spec
