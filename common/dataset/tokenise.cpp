#include "common/dataset/tokenise.h"

#include "common/base/checksum.h"
#include "common/base/json.h"
#include "common/dataset/row_text.h"
#include "common/dataset/unicode.h"

#include <algorithm>

namespace nsa::dataset {
namespace {

constexpr const char* kMendRow =
    "write one JSON object a line, such as {\"text\": \"...\"}, or rename the file if it is plain "
    "text";

constexpr size_t kLargestRow = size_t{256} << 20;

// Parses a row that read_row_text() rejected, or returns the error. A blank row is an empty
// document.
Result<std::string> parse_row(std::string_view row, const std::string& key,
                              std::string_view key_option) {
  const auto name_key = [&] {
    return "name the key that holds the text: " + std::string(key_option);
  };
  if (row.find_first_not_of(" \t\r\n") == row.npos) return std::string();
  auto value = parse_json(row, "the row", {.bytes = kLargestRow});
  if (!value) return fail(ErrorCode::kInvalidArgument, value.error().what, kMendRow);
  if (!value->is_object())
    return fail(ErrorCode::kInvalidArgument, "the row is no JSON object", kMendRow);
  const auto text = value->find(key);
  if (text == value->end())
    return fail(ErrorCode::kInvalidArgument, "the row has no key '" + key + "'", name_key());
  if (!text->is_string())
    return fail(ErrorCode::kInvalidArgument,
                "'" + key + "' is " + text->type_name() + ", a string was expected", name_key());
  return std::move(text->get_ref<std::string&>());
}

Error at_line(const RawBatch& batch, int64_t line, Error error) {
  error.what = batch.path + ":" + std::to_string(line) + ": " + error.what;
  return error;
}

// Returns the document's text, with invalid UTF-8 handled as requested. An error names file and
// line. The text is in the batch or in `made`.
Result<std::string_view> text_of(const RawBatch& batch, const RawDocument& document,
                                 const PrepareOptions& options, std::string& made,
                                 int64_t& replaced) {
  std::string_view text =
      std::string_view(batch.text).substr(document.begin, document.end - document.begin);
  const size_t bad = find_invalid_utf8(text);
  if (bad == text.npos && batch.json_lines && read_row_text(text, options.jsonl_key, made))
    return made;
  if (bad != text.npos && options.invalid_utf8 == InvalidUtf8::kReplace) {
    text = made = replace_invalid_utf8(text, replaced);
  } else if (bad != text.npos && options.invalid_utf8 == InvalidUtf8::kError) {
    const auto line =
        document.line + std::count(text.begin(), text.begin() + static_cast<long>(bad), '\n');
    return fail(at_line(batch, line,
                        {ErrorCode::kInvalidArgument, "the text is not UTF-8",
                         "convert the file (iconv), or choose what becomes of such bytes: "
                         "--invalid-utf8 replace, or keep"}));
  }
  if (!batch.json_lines) return text;
  auto row = parse_row(text, options.jsonl_key, batch.key_option);
  if (!row) return fail(at_line(batch, document.line, std::move(row).error()));
  return made = std::move(*row);
}

} // namespace

int64_t number_of_text(std::string_view text) {
  return std::stoll(checksum_hex(text).substr(17), nullptr, 16); // the low 60 bits of XXH3-128
}

double draw_of(int64_t document_number, uint64_t seed) {
  // SplitMix64 (Steele, Lea and Flood 2014), as a hash of the pair.
  uint64_t z = seed * 0xD1342543DE82EF95ull +
               static_cast<uint64_t>(document_number + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

Split split_of(int64_t document_number, uint64_t seed, double heldout_fraction) {
  return draw_of(document_number, seed) < heldout_fraction ? Split::kHeldout : Split::kTrain;
}

TokenBatch tokenise(const RawBatch& batch, const Tokenizer& tokenizer,
                    const PrepareOptions& options) {
  TokenBatch result;
  result.source = batch.source;
  result.source_bytes = batch.source_bytes;
  std::string made;
  for (const RawDocument& document : batch.documents) {
    const auto text = text_of(batch, document, options, made, result.replaced_characters);
    if (!text) {
      result.error = text.error();
      return result;
    }
    if (text->empty()) {
      ++result.empty_documents;
      continue;
    }
    const int64_t number = batch.draw == Draw::kByText ? number_of_text(*text) : document.number;
    const auto split =
        static_cast<size_t>(split_of(number, options.seed, options.heldout_fraction));
    result.least_draw = std::min(result.least_draw, draw_of(number, options.seed));
    const size_t before = result.tokens[split].size();
    result.tokens[split].push_back(tokenizer.separator());
    tokenizer.encode(*text, result.tokens[split]);
    if (batch.draw == Draw::kByText)
      result.order.push_back(
          {static_cast<Split>(split), document.line, result.tokens[split].size() - before});
    ++result.documents[split];
    result.text_bytes += text->size();
  }
  return result;
}

} // namespace nsa::dataset
