// Our tokenizer as a filter, for tests/oracle/tokenizer_oracle.py.
//
//   tokenizer_probe RANKS           texts on stdin, each as "<bytes>\n<text>"; ids of one text a
//   line tokenizer_probe --classes       the class of every code point, one letter each: L, N, S or
//   O
#include "common/base/text.h"
#include "common/dataset/tokenizer.h"
#include "common/dataset/unicode.h"

#include <cstdio>
#include <iostream>
#include <string>

namespace {

int print_classes() {
  std::string line;
  for (char32_t code = 0; code < 0x110000; ++code)
    line.push_back("LNSO"[static_cast<size_t>(nsa::dataset::char_class(code))]);
  return std::puts(line.c_str()) < 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_probe RANKS | --classes\n");
    return 2;
  }
  if (std::string_view(argv[1]) == "--classes") return print_classes();
  const auto tokenizer = nsa::dataset::load_gpt2_tokenizer(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "error: %s\n", tokenizer.error().what.c_str());
    return 1;
  }
  std::ios::sync_with_stdio(false);
  std::string header, text, line;
  std::vector<nsa::dataset::Token> ids;
  while (std::getline(std::cin, header)) {
    text.resize(std::stoull(header));
    if (!std::cin.read(text.data(), static_cast<std::streamsize>(text.size()))) return 1;
    ids.clear();
    (*tokenizer)->encode(text, ids);
    if ((*tokenizer)->decode(ids) != text) {
      std::fprintf(stderr, "error: decoding does not give the text back\n");
      return 1;
    }
    line.clear();
    for (const auto id : ids)
      line += std::to_string(id) + " ";
    std::cout << line << '\n';
  }
}
