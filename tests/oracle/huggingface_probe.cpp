// Our reading of a tokenizer.json as a filter, for tests/oracle/huggingface_oracle.py.
//
//   huggingface_probe TOKENIZER.JSON    texts on stdin, each as "<bytes>\n<text>"; ids of one text
//   a line
#include "common/dataset/tokenizer.h"

#include <cstdio>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: huggingface_probe TOKENIZER.JSON\n");
    return 2;
  }
  const auto tokenizer = nsa::dataset::load_huggingface_tokenizer(argv[1]);
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
    line.clear();
    for (const auto id : ids)
      line += std::to_string(id) + " ";
    std::cout << line << '\n';
  }
}
