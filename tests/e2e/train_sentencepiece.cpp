// A model of SentencePiece for tests/e2e/sentencepiece: byte-pair encoding of a text, with bytes
// for what it has no piece for.
//
//   train_sentencepiece TEXT PREFIX VOCABULARY    writes PREFIX.model
#include <cstdio>
#include <sentencepiece_trainer.h>
#include <string>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: train_sentencepiece TEXT PREFIX VOCABULARY\n");
    return 2;
  }
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--minloglevel=2 --model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
      "--remove_extra_whitespaces=false --input=" +
      std::string(argv[1]) + " --model_prefix=" + argv[2] + " --vocab_size=" + argv[3]);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
