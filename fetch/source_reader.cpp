#include "fetch/source_reader.h"

#include <algorithm>

namespace nsa::fetch {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;

uint64_t weight(const PlannedFile& file) {
  return std::max<uint64_t>(file.bytes, 1);
}

} // namespace

SourceReader::SourceReader(const FetchOptions& options, const Plan& plan, Http& http,
                           std::string folder, Pipeline& pipeline, std::stop_token stop)
    : options_(options), plan_(plan), http_(http), folder_(std::move(folder)), pipeline_(pipeline),
      stop_(std::move(stop)) {
  for (const PlannedFile& file : plan.files)
    total_ += static_cast<double>(weight(file));
}

double SourceReader::part_of(size_t file, double within) const {
  double before = 0;
  for (size_t i = 0; i < file && i < plan_.files.size(); ++i)
    before += static_cast<double>(weight(plan_.files[i]));
  if (file < plan_.files.size()) before += within * static_cast<double>(weight(plan_.files[file]));
  return before / total_;
}

Status SourceReader::read_all(size_t file, RowPlace place) {
  for (; file < plan_.files.size(); ++file, place = {}) {
    NSA_TRY_ASSIGN(const bool more, read_file(file, place));
    if (!more) break;
  }
  return {};
}

Result<bool> SourceReader::read_file(size_t index, RowPlace from) {
  const PlannedFile& file = plan_.files[index];
  if (file.format == Format::kSynthetic) {
    NSA_TRY_ASSIGN(const auto made, open_synthetic(file.name, from));
    return read_rows(index, *made);
  }
  NSA_TRY_ASSIGN(const std::string address, address_of(file, options_.sources, options_.http));
  NSA_TRY_ASSIGN(const auto source, open_file(file, address, http_, folder_, stop_));
  RowsOptions how;
  how.name = file.name;
  how.format = file.format;
  how.compression = file.compression;
  how.column = options_.prepare.jsonl_key;
  how.paragraphs = options_.prepare.documents == dataset::DocumentUnit::kParagraph;
  how.min_document_bytes = options_.prepare.min_document_bytes;
  NSA_TRY_ASSIGN(const auto rows, open_rows(*source, how, from));
  return read_rows(index, *rows);
}

Result<bool> SourceReader::read_rows(size_t index, Rows& rows) {
  RawPart part = begin(index);
  std::string_view text;
  while (true) {
    NSA_TRY_ASSIGN(const bool there, rows.next(text));
    if (!there) break;
    const size_t start = part.batch.text.size();
    part.batch.text.append(text);
    part.batch.documents.push_back({start, part.batch.text.size(), rows.place().row, 0});
    // From a slow source a batch stays small, so that its text is recorded soon.
    const bool slow = MonotonicTime::now() - begun_ > std::chrono::milliseconds(200);
    if (part.batch.text.size() < kBatchBytes && !slow) continue;
    part.end = {index, rows.place(), part_of(index, rows.part())};
    if (!pipeline_.push(std::move(part))) return false;
    part = begin(index);
  }
  part.end = {index + 1, {}, part_of(index + 1, 0)};
  return pipeline_.push(std::move(part));
}

RawPart SourceReader::begin(size_t index) {
  begun_ = MonotonicTime::now();
  RawPart part;
  part.batch.source = index;
  part.batch.path = plan_.files[index].name;
  part.batch.json_lines = plan_.files[index].format == Format::kJsonLines;
  part.batch.key_option = "--column NAME";
  part.batch.draw = dataset::Draw::kByText;
  return part;
}

} // namespace nsa::fetch
