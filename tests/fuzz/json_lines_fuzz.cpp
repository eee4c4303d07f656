// Any bytes as a .jsonl source, in pieces. The result is an error that names a line, or tokens that
// decode to the text of the rows. The first byte chooses the length of pieces, and what to do with
// invalid UTF-8.
#include "common/base/json.h"
#include "common/dataset/document.h"
#include "common/dataset/row_text.h"
#include "common/dataset/tokenise.h"
#include "common/dataset/unicode.h"

#include <algorithm>
#include <cstdlib>

using namespace nsa::dataset;

namespace {

RawBatch rows_of(std::string_view bytes, size_t piece) {
  RawBatch batch;
  batch.path = "fuzz.jsonl";
  batch.json_lines = true;
  DocumentCutter cutter(Cut::kLines, 0, [&](std::string_view text, int64_t line) -> nsa::Status {
    const size_t begin = batch.text.size();
    batch.text.append(text);
    batch.documents.push_back({begin, batch.text.size(), line, line});
    return {};
  });
  for (size_t at = 0; at < bytes.size(); at += piece)
    if (!cutter.push(bytes.substr(at, piece))) std::abort();
  if (!cutter.finish()) std::abort();
  return batch;
}

// Text that is read without a tree equals that of a tree.
void check_reader(const RawBatch& batch) {
  for (const RawDocument& row : batch.documents) {
    const std::string_view bytes =
        std::string_view(batch.text).substr(row.begin, row.end - row.begin);
    std::string text;
    if (find_invalid_utf8(bytes) != bytes.npos || !read_row_text(bytes, "text", text)) continue;
    const auto tree = nsa::parse_json(bytes, "row");
    if (!tree || tree->at("text") != text) std::abort();
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const auto tokenizer = make_byte_tokenizer();
  PrepareOptions options;
  options.heldout_fraction = 0;
  options.invalid_utf8 = static_cast<InvalidUtf8>(data[0] % 3);
  const RawBatch batch =
      rows_of({reinterpret_cast<const char*>(data) + 1, size - 1}, 1 + data[0] / 3);
  check_reader(batch);
  const TokenBatch tokens = tokenise(batch, *tokenizer, options);
  if (tokens.error && tokens.error->what.rfind("fuzz.jsonl:", 0) != 0) std::abort();
  const auto& train = tokens.tokens[0];
  const auto separators = std::count(train.begin(), train.end(), tokenizer->separator());
  if (separators != tokens.documents[0]) std::abort();
  if (static_cast<uint64_t>(separators) + tokens.text_bytes != train.size()) std::abort();
  // A JSON string is UTF-8, whatever was done with its bytes before.
  for (size_t at = 0; at < train.size();) {
    const auto end =
        std::find(train.begin() + static_cast<long>(at) + 1, train.end(), tokenizer->separator());
    const std::string text = tokenizer->decode(
        {train.data() + at + 1, static_cast<size_t>(end - train.begin()) - at - 1});
    if (find_invalid_utf8(text) != std::string::npos) std::abort();
    at = static_cast<size_t>(end - train.begin());
  }
  return 0;
}
