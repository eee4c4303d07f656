#include "common/dataset/prepare.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/dataset/dataset.h"
#include "common/dataset/document.h"
#include "common/dataset/entropy.h"
#include "common/dataset/ordered_pipeline.h"
#include "common/dataset/source.h"
#include "common/dataset/tokenise.h"
#include "common/dataset/work_folder.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <thread>

namespace nsa::dataset {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;

Status check(const PrepareOptions& options) {
  auto wrong = [](std::string what) { return fail(ErrorCode::kInvalidArgument, std::move(what)); };
  if (options.inputs.empty()) return wrong("no input is given");
  if (options.output.empty()) return wrong("no output folder is given");
  if (!(options.heldout_fraction >= 0 && options.heldout_fraction <= 0.5))
    return wrong("the held-out fraction must lie between 0 and 0.5");
  if (options.shard_tokens < 1 || options.shard_tokens > INT32_MAX)
    return wrong("a shard holds between 1 and 2147483647 tokens");
  if (options.min_document_bytes < 0) return wrong("the least document size is negative");
  if (options.min_document_bytes > 0 && options.documents != DocumentUnit::kParagraph)
    return wrong("a least document size says where paragraphs are joined: it needs documents = "
                 "paragraph");
  if (options.threads < 0 || options.threads > 1024)
    return wrong("the number of threads must lie between 0 (all processors) and 1024");
  return {};
}

PreparationRecord preparation_record(const PrepareOptions& options) {
  return {text_of(options.documents), options.min_document_bytes, text_of(options.invalid_utf8),
          options.jsonl_key,          options.heldout_fraction,   options.seed,
          options.shard_tokens};
}

// Appends tokens to shard files, and opens the next file when one is full.
class SplitWriter {
public:
  SplitWriter(fs::path folder, Split split, int64_t shard_tokens)
      : folder_(std::move(folder)), split_(split), shard_tokens_(shard_tokens) {}

  Status append(std::span<const Token> tokens) {
    while (!tokens.empty()) {
      if (!shard_) {
        char name[40];
        std::snprintf(name, sizeof name, "%s_%06zu.bin", text_of(split_).c_str(), records_.size());
        file_ = name;
        NSA_TRY_ASSIGN(shard_, ShardWriter::create(folder_ / file_));
      }
      const auto room = static_cast<size_t>(shard_tokens_ - shard_->tokens());
      const size_t count = std::min(room, tokens.size());
      NSA_TRY(shard_->append(tokens.first(count)));
      tokens = tokens.subspan(count);
      if (shard_->tokens() == shard_tokens_) NSA_TRY(finish());
    }
    return {};
  }

  Status finish() {
    if (!shard_) return {};
    NSA_TRY_ASSIGN(WrittenShard written, shard_->finish());
    records_.push_back({file_, split_, ShardFormat::kLlmC, written.tokens, written.bytes,
                        std::move(written.checksum)});
    shard_.reset();
    return {};
  }

  const std::vector<ShardRecord>& records() const { return records_; }

private:
  fs::path folder_;
  Split split_;
  int64_t shard_tokens_;
  std::string file_;
  std::optional<ShardWriter> shard_;
  std::vector<ShardRecord> records_;
};

using Pipeline = OrderedPipeline<RawBatch, TokenBatch>;

// The reading thread: cuts the sources, in order, into batches of documents.
class BatchReader {
public:
  BatchReader(const SourceList& sources, const PrepareOptions& options, Pipeline& pipeline)
      : sources_(sources), options_(options), pipeline_(pipeline) {}

  // Appends one record for each source. An error from a stopped pipeline can be ignored, because
  // the thread that stopped it has the cause.
  Status read_all(std::vector<SourceRecord>& records) {
    for (size_t i = 0; i < sources_.files.size(); ++i) {
      NSA_TRY_ASSIGN(SourceRecord record, read_source(i));
      records.push_back(std::move(record));
    }
    return {};
  }

private:
  Result<SourceRecord> read_source(size_t index) {
    const SourceFile& file = sources_.files[index];
    const Cut cut = file.json_lines                                  ? Cut::kLines
                    : options_.documents == DocumentUnit::kParagraph ? Cut::kParagraphs
                                                                     : Cut::kWhole;
    NSA_TRY_ASSIGN(SourceReader reader, SourceReader::open(file.path));
    start_batch(index);
    DocumentCutter cutter(
        cut, options_.min_document_bytes, [&](std::string_view text, int64_t line) -> Status {
          const size_t begin = batch_.text.size();
          batch_.text.append(text);
          batch_.documents.push_back({begin, batch_.text.size(), line, next_document_++});
          if (batch_.text.size() < kBatchBytes) return {};
          return flush(index, reader.file_bytes_read());
        });
    auto in_file = [&](Error error) { return std::move(error).within(file.path.string()); };
    while (true) {
      NSA_TRY_ASSIGN(const size_t got, reader.read(chunk_));
      if (got == 0) break;
      if (auto status = cutter.push({chunk_.data(), got}); !status)
        return fail(in_file(std::move(status).error()));
    }
    if (auto status = cutter.finish(); !status) return fail(in_file(std::move(status).error()));
    NSA_TRY(flush(index, reader.file_bytes_read()));
    bytes_before_ += reader.file_bytes_read();
    return SourceRecord{file.path.string(), reader.file_bytes_read(), reader.checksum(), 0};
  }

  void start_batch(size_t index) {
    batch_ = {};
    batch_.source = index;
    batch_.path = sources_.files[index].path.string();
    batch_.json_lines = sources_.files[index].json_lines;
  }

  Status flush(size_t index, uint64_t read) {
    if (batch_.documents.empty()) return {};
    batch_.source_bytes = bytes_before_ + read;
    if (!pipeline_.push(std::move(batch_))) return fail(ErrorCode::kUnavailable, "stopped");
    start_batch(index);
    return {};
  }

  const SourceList& sources_;
  const PrepareOptions& options_;
  Pipeline& pipeline_;
  RawBatch batch_;
  std::vector<char> chunk_ = std::vector<char>(size_t{1} << 20);
  int64_t next_document_ = 0;
  uint64_t bytes_before_ = 0;
};

// The state of one call of prepare().
class Preparation {
public:
  Preparation(const PrepareOptions& options,
              const std::function<void(const PrepareProgress&)>& report, std::stop_token stop)
      : options_(options), drawing_(options), report_(report), stop_(std::move(stop)) {}

  Result<PrepareResult> run() {
    NSA_TRY(check(options_));
    NSA_TRY_ASSIGN(tokenizer_, load_tokenizer(options_.tokenizer, options_.ranks_file));
    NSA_TRY_ASSIGN(sources_, list_sources(options_.inputs));
    progress_.bytes_total = sources_.bytes();
    NSA_TRY_ASSIGN(const bool reusable, look_at_output());
    if (reusable) return std::move(result_);
    NSA_TRY_ASSIGN(WorkFolder folder, WorkFolder::create(options_.output));
    NSA_TRY(tokenise_all(folder.path()));
    if (options_.heldout_fraction > 0 && result_.manifest.heldout_documents == 0 &&
        result_.manifest.documents > 1)
      NSA_TRY(set_one_aside(folder.path()));
    NSA_TRY(measure(folder.path()));
    enter(PrepareProgress::Stage::kFinishing);
    NSA_TRY(complete(folder.path()));
    NSA_TRY(folder.commit(options_.if_exists == IfExists::kReplace));
    tell(true);
    result_.passed_over = std::move(sources_.passed_over);
    result_.seconds = elapsed();
    return std::move(result_);
  }

private:
  double elapsed() const { return to_seconds(MonotonicTime::now() - start_); }

  void enter(PrepareProgress::Stage stage) {
    tell(true);
    progress_.stage = stage;
    tell(true);
  }

  void tell(bool always) {
    if (!report_) return;
    const MonotonicTime now = MonotonicTime::now();
    if (!always && now - last_told_ < std::chrono::milliseconds(100)) return;
    last_told_ = now;
    progress_.elapsed_seconds = elapsed();
    report_(progress_);
  }

  tl::unexpected<Error> interrupted() const {
    return fail(ErrorCode::kUnavailable, "interrupted; nothing was left behind");
  }

  // Returns true if the existing data set can be reused. An output that is not a data set is never
  // changed.
  Result<bool> look_at_output() {
    const fs::path& output = options_.output;
    std::error_code error;
    if (!fs::exists(output, error) || fs::is_empty(output, error)) return false;
    if (!fs::exists(output / kManifestFile, error))
      return fail(ErrorCode::kConflict, output.string() + " exists and is not a data set",
                  "choose another output folder");
    if (options_.if_exists == IfExists::kReplace) return false;
    if (options_.if_exists == IfExists::kFail)
      return fail(ErrorCode::kConflict, output.string() + " exists",
                  "choose another output folder, or replace it: --replace");
    NSA_TRY_ASSIGN(const auto existing, Dataset::open(output, Check::kSizes));
    if (auto status = same_preparation(existing->manifest()); !status) {
      Error why = std::move(status).error().within(output.string() + " was prepared otherwise");
      why.next = "choose another output folder, or replace it: --replace";
      return fail(std::move(why));
    }
    result_.manifest = existing->manifest();
    result_.reused = true;
    result_.seconds = elapsed();
    return true;
  }

  Status same_preparation(const Manifest& old) const {
    auto differs = [](std::string what) { return fail(ErrorCode::kConflict, std::move(what)); };
    if (old.tokenizer.digest != tokenizer_->digest())
      return differs("with the tokenizer '" + old.tokenizer.name + "'");
    if (old.preparation != preparation_record(options_))
      return differs("with other options for documents, splits or shards");
    if (old.sources.size() != sources_.files.size())
      return differs("from " + std::to_string(old.sources.size()) + " files, now there are " +
                     std::to_string(sources_.files.size()));
    for (size_t i = 0; i < old.sources.size(); ++i) {
      const SourceFile& file = sources_.files[i];
      const SourceRecord& record = old.sources[i];
      if (record.path != file.path.string())
        return differs("from " + record.path + ", where there is " + file.path.string() + " now");
      NSA_TRY_ASSIGN(const std::string found, checksum_file_hex(file.path));
      if (found != record.checksum) return differs("from another " + record.path);
    }
    return {};
  }

  Status tokenise_all(const fs::path& folder) {
    const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const int threads = options_.threads > 0 ? options_.threads : processors;
    Pipeline pipeline(threads, threads * 4,
                      [&](RawBatch&& batch) { return tokenise(batch, *tokenizer_, drawing_); });
    Status read;
    {
      // The reader uses the pipeline, so it is joined before the pipeline is destroyed.
      std::jthread reader([&] {
        read = BatchReader(sources_, options_, pipeline).read_all(result_.manifest.sources);
        pipeline.close();
      });
      auto status = write_all_batches(folder, pipeline);
      pipeline.stop();
      if (!status) return status;
    }
    return read;
  }

  // A small fraction of few documents may select none. Then a second pass sets the document with
  // the least draw aside; the text is small in this case.
  Status set_one_aside(const fs::path& folder) {
    drawing_.heldout_fraction = std::nextafter(least_draw_, 1.0);
    std::error_code error;
    for (const ShardRecord& shard : result_.manifest.shards)
      fs::remove(folder / shard.file, error);
    result_ = {};
    source_documents_.clear();
    progress_ = {};
    progress_.bytes_total = sources_.bytes();
    return tokenise_all(folder);
  }

  Status write_all_batches(const fs::path& folder, Pipeline& pipeline) {
    SplitWriter train(folder, Split::kTrain, options_.shard_tokens);
    SplitWriter heldout(folder, Split::kHeldout, options_.shard_tokens);
    while (auto batch = pipeline.next(stop_)) {
      if (batch->error) return fail(std::move(*batch->error));
      NSA_TRY(train.append(batch->tokens[static_cast<size_t>(Split::kTrain)]));
      NSA_TRY(heldout.append(batch->tokens[static_cast<size_t>(Split::kHeldout)]));
      note(*batch);
      tell(false);
    }
    if (stop_.stop_requested()) return interrupted();
    NSA_TRY(heldout.finish());
    NSA_TRY(train.finish());
    // Held-out text first, as in llm.c.
    std::vector<ShardRecord>& shards = result_.manifest.shards;
    shards = heldout.records();
    shards.insert(shards.end(), train.records().begin(), train.records().end());
    return {};
  }

  void note(const TokenBatch& batch) {
    const auto heldout = static_cast<size_t>(Split::kHeldout);
    const int64_t documents = batch.documents[0] + batch.documents[1];
    source_documents_.resize(sources_.files.size());
    source_documents_[batch.source] += documents;
    result_.manifest.documents += documents;
    result_.manifest.heldout_documents += batch.documents[heldout];
    result_.manifest.replaced_characters += batch.replaced_characters;
    result_.empty_documents += batch.empty_documents;
    result_.text_bytes += batch.text_bytes;
    least_draw_ = std::min(least_draw_, batch.least_draw);
    progress_.bytes_done = batch.source_bytes;
    progress_.documents = result_.manifest.documents;
    progress_.tokens += static_cast<int64_t>(batch.tokens[0].size() + batch.tokens[1].size());
  }

  Status measure(const fs::path& folder) {
    enter(PrepareProgress::Stage::kMeasuring);
    EntropyMeter whole(tokenizer_->vocabulary_size()), heldout(tokenizer_->vocabulary_size());
    for (const ShardRecord& record : result_.manifest.shards) {
      if (stop_.stop_requested()) return interrupted();
      NSA_TRY_ASSIGN(const auto shard, ShardReader::open(folder / record.file, record.format));
      whole.add(shard.tokens());
      if (record.split == Split::kHeldout) heldout.add(shard.tokens());
    }
    result_.manifest.text = whole.measure();
    result_.manifest.heldout = heldout.measure();
    return {};
  }

  Status complete(const fs::path& folder) {
    Manifest& manifest = result_.manifest;
    if (manifest.documents == 0)
      return fail(ErrorCode::kInvalidArgument,
                  sources_.files.size() == 1
                      ? sources_.files.front().path.string() + " holds no text"
                      : "none of " + std::to_string(sources_.files.size()) +
                            " files holds text, the first is " +
                            sources_.files.front().path.string(),
                  "name files that are not empty");
    const bool lopsided = manifest.tokens(Split::kTrain) == 0 ||
                          (options_.heldout_fraction > 0 && manifest.heldout_documents == 0);
    if (lopsided)
      return fail(
          ErrorCode::kInvalidArgument,
          "too few documents for this held-out fraction: " + std::to_string(manifest.documents) +
              " in all, " + std::to_string(manifest.heldout_documents) + " held out",
          "cut the text at blank lines: --documents paragraph; or set nothing aside: "
          "--heldout-fraction 0");
    for (size_t i = 0; i < source_documents_.size(); ++i)
      manifest.sources[i].documents = source_documents_[i];
    manifest.created_at = format_rfc3339(WallTime::now());
    manifest.tokenizer = {text_of(tokenizer_->kind()), tokenizer_->digest(),
                          tokenizer_->vocabulary_size(), tokenizer_->separator()};
    manifest.preparation = preparation_record(options_);
    manifest.digest = dataset_digest(manifest);
    NSA_TRY(copy_tokenizer(options_.tokenizer, options_.ranks_file, folder));
    return write_manifest(folder, manifest);
  }

  const PrepareOptions& options_;
  PrepareOptions drawing_; // the options with the actual held-out fraction
  double least_draw_ = 1;  // the least draw of all documents
  const std::function<void(const PrepareProgress&)>& report_;
  const std::stop_token stop_;
  const MonotonicTime start_ = MonotonicTime::now();
  MonotonicTime last_told_;
  PrepareProgress progress_;
  std::unique_ptr<Tokenizer> tokenizer_;
  SourceList sources_;
  std::vector<int64_t> source_documents_;
  PrepareResult result_;
};

} // namespace

Result<PrepareResult> prepare(const PrepareOptions& options,
                              const std::function<void(const PrepareProgress&)>& progress,
                              std::stop_token stop) {
  auto result = Preparation(options, progress, std::move(stop)).run();
  if (result) return result;
  Error error = std::move(result).error().within("preparing " + options.output.string());
  if (error.code == ErrorCode::kExhausted && error.next.empty())
    error.next = "free space there, or choose another --out; nothing was left behind";
  return fail(std::move(error));
}

} // namespace nsa::dataset
