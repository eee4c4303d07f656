// Implements `nsactl data adopt`, which makes a data set in place from shards that other programs
// made.
#include "cli/data_common.h"
#include "common/dataset/prepare.h"

namespace nsa::cli {
namespace {

Result<Exit> run_data_adopt(const Arguments& arguments, Context& context) {
  dataset::AdoptOptions options;
  options.folder = arguments.text("FOLDER");
  NSA_TRY_ASSIGN(const NamedTokenizer tokenizer, named_tokenizer(arguments, context));
  options.tokenizer = tokenizer.kind;
  options.ranks_file = tokenizer.file;
  NSA_TRY_ASSIGN(options.format, dataset::parse_shard_format(arguments.text("format", "llmc")));
  NSA_TRY_ASSIGN(const dataset::Manifest manifest, dataset::adopt(options));
  if (context.output == Output::kJson)
    context.io.out << dataset::to_json(manifest);
  else
    print_summary(manifest, options.folder, context.io);
  return Exit::kDone;
}

} // namespace

Verb data_adopt_verb() {
  Verb verb;
  verb.name = "data adopt";
  verb.summary = "Make a data set from existing token shards";
  verb.detail = "Writes dataset.json beside shards of llm.c, modded-nanogpt (llmc) or nanoGPT "
                "(raw_u16). Files whose names contain 'val' or 'heldout' are the held-out split.";
  verb.positionals = {{"FOLDER", ValueType::kPath, "the folder with the .bin files"}};
  verb.options = {
      data_tokenizer_option("tokenizer that made the tokens"),
      {"format",
       0,
       ValueType::kText,
       "FORMAT",
       "format of the files: llmc (default) or raw_u16",
       false,
       {"llmc", "raw_u16"}},
      ranks_option(),
  };
  verb.examples = {{"nsactl data adopt fineweb10B", "edu_fineweb_val_000000.bin and so on"}};
  verb.run = run_data_adopt;
  return verb;
}

} // namespace nsa::cli
