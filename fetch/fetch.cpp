#include "fetch/fetch.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/dataset/dataset.h"
#include "common/dataset/entropy.h"
#include "common/dataset/generations.h"
#include "common/dataset/tokenise.h"
#include "common/dataset/work_folder.h"
#include "fetch/progress_file.h"
#include "fetch/source_reader.h"
#include "fetch/split_writer.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <thread>

namespace nsa::fetch {
namespace {

namespace fs = std::filesystem;
using dataset::Split;

constexpr int64_t kLeastHeldoutShard = 65'536; // tokens

Request request_of(const FetchOptions& options, const dataset::Tokenizer& tokenizer) {
  Request request = {{"tokenizer", tokenizer.digest()},
                     {"documents", text_of(options.prepare.documents)},
                     {"min_document_bytes", options.prepare.min_document_bytes},
                     {"invalid_utf8", text_of(options.prepare.invalid_utf8)},
                     {"column", options.prepare.jsonl_key},
                     {"heldout_fraction", options.prepare.heldout_fraction},
                     {"seed", options.prepare.seed},
                     {"shard_tokens", options.prepare.shard_tokens},
                     {"tokens", options.most_tokens.value_or(0)},
                     {"sources", nlohmann::json::array()}};
  for (const std::string& source : options.sources)
    request["sources"].push_back(printable_source(source));
  return request;
}

int64_t heldout_shard_tokens(const dataset::PrepareOptions& options) {
  const auto part =
      std::llround(static_cast<double>(options.shard_tokens) * options.heldout_fraction);
  const int64_t least = std::min<int64_t>(kLeastHeldoutShard, options.shard_tokens);
  return std::clamp<int64_t>(part, least, options.shard_tokens);
}

// The state of one call of fetch().
class Fetch {
public:
  Fetch(const FetchOptions& options, const std::function<void(const FetchProgress&)>& report,
        std::stop_token stop)
      : options_(options), prepare_(options.prepare), report_(report), stop_(std::move(stop)),
        http_(options.http, stop_) {}

  Result<FetchResult> run() {
    NSA_TRY(check());
    NSA_TRY_ASSIGN(tokenizer_, dataset::load_tokenizer(prepare_.tokenizer, prepare_.ranks_file));
    NSA_TRY_ASSIGN(const bool reusable, look_at_output());
    if (reusable) return std::move(result_);
    NSA_TRY_ASSIGN(dataset::WorkFolder folder,
                   dataset::WorkFolder::create_or_continue(prepare_.output));
    folder_ = folder.path();
    if (options_.restart) NSA_TRY(folder.clear());
    NSA_TRY(make_or_read_plan());
    NSA_TRY_ASSIGN(state_, read_state(folder_));
    tokens_written_ = state_.splits[0].tokens() + state_.splits[1].tokens();
    state_.source_documents.resize(plan_.files.size());
    NSA_TRY(resume_shards());
    if (!state_.done) NSA_TRY(read_and_write());
    progress_.finishing = true;
    tell(true);
    NSA_TRY(complete());
    NSA_TRY(folder.commit(prepare_.if_exists == dataset::IfExists::kReplace));
    remove_progress(prepare_.output);
    result_.text_bytes = state_.text_bytes;
    result_.own_text_bytes = progress_.text_bytes;
    result_.received_bytes = http_.bytes_received();
    result_.empty_documents = state_.empty_documents;
    result_.seconds = elapsed();
    return std::move(result_);
  }

private:
  double elapsed() const { return to_seconds(MonotonicTime::now() - start_); }

  Status check() const {
    auto wrong = [](std::string what) {
      return fail(ErrorCode::kInvalidArgument, std::move(what));
    };
    if (options_.sources.empty()) return wrong("no source is given");
    if (!(prepare_.heldout_fraction >= 0 && prepare_.heldout_fraction <= 0.5))
      return wrong("the held-out fraction must lie between 0 and 0.5");
    if (prepare_.shard_tokens < 1 || prepare_.shard_tokens > INT32_MAX)
      return wrong("a shard holds between 1 and 2147483647 tokens");
    if (prepare_.threads < 0 || prepare_.threads > 1024)
      return wrong("the number of threads must lie between 0 (all processors) and 1024");
    if (prepare_.min_document_bytes > 0 && prepare_.documents != dataset::DocumentUnit::kParagraph)
      return wrong("--min-document-bytes joins paragraphs: it needs --documents paragraph");
    if (options_.most_tokens && *options_.most_tokens < 1)
      return fail(ErrorCode::kInvalidArgument,
                  "--tokens must be at least 1, not " + std::to_string(*options_.most_tokens),
                  "leave --tokens out to fetch everything");
    return {};
  }

  // An option without effect means that the sources are not what the user expected.
  Status check_effect(const std::vector<PlannedFile>& files) const {
    const auto none = [&](std::initializer_list<Format> formats) {
      return std::none_of(files.begin(), files.end(), [&](const PlannedFile& file) {
        return std::find(formats.begin(), formats.end(), file.format) != formats.end();
      });
    };
    if (prepare_.documents == dataset::DocumentUnit::kParagraph && none({Format::kText}))
      return fail(ErrorCode::kInvalidArgument,
                  "--documents paragraph has no effect: no source is plain text",
                  "leave it out: a row of .parquet or .jsonl is a document");
    if (prepare_.jsonl_key != dataset::PrepareOptions{}.jsonl_key &&
        none({Format::kParquet, Format::kJsonLines}))
      return fail(ErrorCode::kInvalidArgument,
                  "--column has no effect: no source is .parquet or .jsonl",
                  "leave it out: the whole of plain text is read");
    return {};
  }

  dataset::PreparationRecord preparation_record() const {
    return {text_of(prepare_.documents),    prepare_.min_document_bytes,
            text_of(prepare_.invalid_utf8), prepare_.jsonl_key,
            prepare_.heldout_fraction,      prepare_.seed,
            prepare_.shard_tokens};
  }

  // Returns true if the existing data set can be reused. It never changes an output folder that is
  // not a data set.
  Result<bool> look_at_output() {
    const fs::path& output = prepare_.output;
    std::error_code error;
    if (!fs::exists(output, error) || fs::is_empty(output, error)) return false;
    if (!fs::exists(output / dataset::kManifestFile, error))
      return fail(ErrorCode::kConflict, output.string() + " exists and is not a data set",
                  "choose another output folder");
    if (prepare_.if_exists == dataset::IfExists::kReplace) return false;
    if (prepare_.if_exists == dataset::IfExists::kFail)
      return fail(ErrorCode::kConflict, output.string() + " exists",
                  "take it as it is: --reuse; or replace it: --replace");
    NSA_TRY_ASSIGN(const auto there, dataset::Dataset::open(output, dataset::Check::kSizes));
    NSA_TRY_ASSIGN(const auto files, list_files(options_.sources, http_));
    bool same = there->manifest().tokenizer.digest == tokenizer_->digest() &&
                there->manifest().preparation == preparation_record() &&
                there->manifest().sources.size() == files.size();
    for (size_t i = 0; same && i < files.size(); ++i)
      same = there->manifest().sources[i].path == files[i].name &&
             there->manifest().sources[i].checksum == files[i].checksum;
    if (!same)
      return fail(ErrorCode::kConflict,
                  output.string() + " was made of other sources or with other options",
                  "choose another output folder, or replace it: --replace");
    result_.manifest = there->manifest();
    result_.reused = true;
    result_.seconds = elapsed();
    return true;
  }

  Status make_or_read_plan() {
    const Request request = request_of(options_, *tokenizer_);
    NSA_TRY_ASSIGN(auto stored, read_plan(folder_));
    if (stored) {
      for (const auto& [key, value] : request.items())
        if (!stored->request.contains(key) || stored->request.at(key) != value)
          return fail(ErrorCode::kConflict,
                      folder_.string() + " was begun with other options: '" + key +
                          "' differs from the one given now",
                      "give the same options to continue, or start again: --restart");
      plan_ = std::move(*stored);
      result_.resumed = true;
      return {};
    }
    plan_.request = request;
    plan_.request["heldout_shard_tokens"] = heldout_shard_tokens(prepare_);
    NSA_TRY_ASSIGN(plan_.files, list_files(options_.sources, http_));
    NSA_TRY(check_effect(plan_.files));
    return write_plan(folder_, plan_);
  }

  Status resume_shards() {
    for (const Split split : {Split::kTrain, Split::kHeldout}) {
      auto& writer = writers_[static_cast<size_t>(split)];
      const bool train = split == Split::kTrain;
      writer.emplace(folder_, split, train ? prepare_.shard_tokens : planned_heldout_shard());
      auto status = writer->resume(state_.splits[static_cast<size_t>(split)]);
      if (status) continue;
      Error error = std::move(status).error();
      error.next = "the folder was changed by hand or is damaged: start again with --restart";
      return fail(std::move(error));
    }
    return {};
  }

  // The first held-out shard is small, so that it is complete about as early as the first train
  // shard. From then on a run may follow the fetch. A plan of an older release keeps its size.
  int64_t planned_heldout_shard() const {
    return plan_.request.value("heldout_shard_tokens", prepare_.shard_tokens);
  }

  Status read_and_write() {
    const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const int threads = prepare_.threads > 0 ? prepare_.threads : processors;
    Pipeline pipeline(threads, threads * 4, [&](RawPart&& part) {
      return TokenPart{dataset::tokenise(part.batch, *tokenizer_, prepare_), part.end};
    });
    // Also ends the reader's downloads when the writer has enough or fails.
    std::stop_source enough;
    const std::stop_callback pass_on(stop_, [&] { enough.request_stop(); });
    Status read;
    {
      SourceReader reader(options_, plan_, http_, folder_.string(), pipeline, enough.get_token());
      progress_.part = progress_.part_at_start =
          state_.file < plan_.files.size() ? reader.part_of(state_.file, 0) : 1;
      const std::jthread thread([&, file = state_.file, place = state_.place] {
        read = reader.read_all(file, place);
        pipeline.close();
      });
      auto status = write_batches(pipeline);
      enough.request_stop();
      pipeline.stop();
      if (!status) return status;
    }
    // What was read before the error is kept.
    if (!read && !state_.done) return read;
    return {};
  }

  Status write_batches(Pipeline& pipeline) {
    while (auto part = pipeline.next(stop_)) {
      if (part->batch.error) {
        NSA_TRY(commit());
        return fail(std::move(*part->batch.error));
      }
      const bool enough = cut_to_most(part->batch);
      for (const Split split : {Split::kTrain, Split::kHeldout})
        NSA_TRY(writer(split).append(part->batch.tokens[static_cast<size_t>(split)]));
      note(*part);
      if (enough) break;
      NSA_TRY(commit_when_due());
      tell(false);
    }
    if (stop_.stop_requested()) {
      NSA_TRY(commit());
      return fail(ErrorCode::kUnavailable, "interrupted", "the same command continues");
    }
    const bool all = state_.file == plan_.files.size();
    const bool reached = options_.most_tokens && tokens() >= *options_.most_tokens;
    if (!all && !reached) return commit(); // the reader reports the reason
    for (auto& writer : writers_)
      NSA_TRY(writer->finish());
    state_.done = true;
    return commit();
  }

  SplitWriter& writer(Split split) { return *writers_[static_cast<size_t>(split)]; }
  int64_t tokens() const { return tokens_written_; }

  // Removes the documents after the one that reaches the requested number of tokens.
  bool cut_to_most(dataset::TokenBatch& batch) {
    if (!options_.most_tokens) return false;
    int64_t sum = tokens_written_;
    size_t kept[2] = {0, 0};
    int64_t documents[2] = {0, 0};
    for (const dataset::DocumentTokens& document : batch.order) {
      const auto split = static_cast<size_t>(document.split);
      kept[split] += document.tokens;
      ++documents[split];
      sum += static_cast<int64_t>(document.tokens);
      if (sum < *options_.most_tokens) continue;
      for (const size_t i : {size_t{0}, size_t{1}}) {
        batch.tokens[i].resize(kept[i]);
        batch.documents[i] = documents[i];
      }
      return true;
    }
    return false;
  }

  void note(const TokenPart& part) {
    const auto heldout = static_cast<size_t>(Split::kHeldout);
    const dataset::TokenBatch& batch = part.batch;
    const int64_t documents = batch.documents[0] + batch.documents[1];
    state_.file = part.end.file;
    state_.place = part.end.place;
    state_.source_documents[batch.source] += documents;
    state_.documents += documents;
    state_.heldout_documents += batch.documents[heldout];
    state_.empty_documents += batch.empty_documents;
    state_.replaced_characters += batch.replaced_characters;
    state_.text_bytes += batch.text_bytes;
    tokens_written_ += static_cast<int64_t>(batch.tokens[0].size() + batch.tokens[1].size());
    progress_.part = part.end.part;
    progress_.text_bytes += batch.text_bytes;
  }

  // Commits so often that it costs at most a twentieth of the time. It also commits when a shard is
  // complete, because a run may wait for it.
  Status commit_when_due() {
    const MonotonicTime now = MonotonicTime::now();
    const Duration least = std::chrono::milliseconds(250);
    const size_t complete = writer(Split::kTrain).complete() + writer(Split::kHeldout).complete();
    const bool grown = complete > state_.splits[0].shards.size() + state_.splits[1].shards.size();
    if (!grown && now - committed_ < std::max(least, commit_cost_ * 20)) return {};
    NSA_TRY(commit());
    committed_ = MonotonicTime::now();
    commit_cost_ = committed_ - now;
    return {};
  }

  // Writes the tokens first, then the state that counts them.
  Status commit() {
    for (const Split split : {Split::kTrain, Split::kHeldout}) {
      NSA_TRY_ASSIGN(state_.splits[static_cast<size_t>(split)], writer(split).sync());
    }
    NSA_TRY(write_state(folder_, state_));
    return record_generations();
  }

  // Called after the state that lists the shards is written, so that a continued fetch never
  // withdraws a generation.
  Status record_generations() {
    const auto& train = state_.splits[0].shards;
    const auto& heldout = state_.splits[1].shards;
    const size_t complete = train.size() + heldout.size();
    if (complete == generations_recorded_ || train.empty()) return {};
    if (heldout.empty() && prepare_.heldout_fraction > 0) return {};
    dataset::Manifest manifest = described();
    manifest.digest = dataset_digest(manifest);
    if (generations_recorded_ == 0)
      NSA_TRY(dataset::copy_tokenizer(prepare_.tokenizer, prepare_.ranks_file, folder_));
    NSA_TRY(dataset::write_generations(folder_, manifest));
    if (generations_recorded_ == 0 && options_.http.notice)
      options_.http.notice(
          "the first shards are complete: a run with data.follow = true can begin");
    generations_recorded_ = complete;
    return {};
  }

  // All except entropies and digest.
  dataset::Manifest described() const {
    dataset::Manifest manifest;
    manifest.shards = state_.splits[1].shards; // held-out text comes first, as in llm.c
    const auto& train = state_.splits[0].shards;
    manifest.shards.insert(manifest.shards.end(), train.begin(), train.end());
    manifest.documents = state_.documents;
    manifest.heldout_documents = state_.heldout_documents;
    manifest.replaced_characters = state_.replaced_characters;
    for (size_t i = 0; i < plan_.files.size(); ++i) {
      const PlannedFile& file = plan_.files[i];
      manifest.sources.push_back(
          {file.name, file.bytes, file.checksum, state_.source_documents[i]});
    }
    manifest.created_at = format_rfc3339(WallTime::now());
    manifest.tokenizer = {text_of(tokenizer_->kind()), tokenizer_->digest(),
                          tokenizer_->vocabulary_size(), tokenizer_->separator()};
    manifest.preparation = preparation_record();
    return manifest;
  }

  void tell(bool always) {
    const MonotonicTime now = MonotonicTime::now();
    if (!report_ || (!always && now - last_told_ < std::chrono::milliseconds(100))) return;
    last_told_ = now;
    progress_.elapsed_seconds = elapsed();
    progress_.documents = state_.documents;
    progress_.tokens = tokens();
    progress_.received_bytes = http_.bytes_received();
    progress_.written_bytes = static_cast<uint64_t>(tokens()) * sizeof(dataset::Token);
    std::error_code error;
    progress_.free_bytes = fs::space(folder_, error).available;
    report_(progress_);
  }

  Status measure() {
    dataset::EntropyMeter whole(tokenizer_->vocabulary_size()),
        heldout(tokenizer_->vocabulary_size());
    for (const dataset::ShardRecord& record : result_.manifest.shards) {
      if (stop_.stop_requested())
        return fail(ErrorCode::kUnavailable, "interrupted", "the same command continues");
      NSA_TRY_ASSIGN(const auto shard,
                     dataset::ShardReader::open(folder_ / record.file, record.format));
      whole.add(shard.tokens());
      if (record.split == Split::kHeldout) heldout.add(shard.tokens());
    }
    result_.manifest.text = whole.measure();
    result_.manifest.heldout = heldout.measure();
    return {};
  }

  Status complete() {
    dataset::Manifest& manifest = result_.manifest;
    manifest = described();
    if (manifest.documents == 0)
      return fail(ErrorCode::kInvalidArgument, "the sources hold no text",
                  "name others, or another column: --column NAME");
    if (manifest.tokens(Split::kTrain) == 0 ||
        (prepare_.heldout_fraction > 0 && manifest.heldout_documents == 0))
      return fail(
          ErrorCode::kInvalidArgument,
          "too few documents for this held-out fraction: " + std::to_string(manifest.documents) +
              " in all, " + std::to_string(manifest.heldout_documents) + " held out",
          "choose another one and start again: --restart --heldout-fraction 0.1; 0 sets "
          "nothing aside");
    NSA_TRY(measure());
    manifest.digest = dataset_digest(manifest);
    NSA_TRY(dataset::copy_tokenizer(prepare_.tokenizer, prepare_.ranks_file, folder_));
    return write_manifest(folder_, manifest);
  }

  const FetchOptions& options_;
  const dataset::PrepareOptions& prepare_;
  const std::function<void(const FetchProgress&)>& report_;
  const std::stop_token stop_;
  Http http_;
  const MonotonicTime start_ = MonotonicTime::now();
  MonotonicTime last_told_, committed_ = MonotonicTime::now();
  Duration commit_cost_{};
  fs::path folder_;
  std::unique_ptr<dataset::Tokenizer> tokenizer_;
  Plan plan_;
  FetchState state_;
  std::optional<SplitWriter> writers_[2]; // indexed by Split
  int64_t tokens_written_ = 0;
  size_t generations_recorded_ = 0; // shards of both splits in generations.json
  FetchProgress progress_;
  FetchResult result_;
};

} // namespace

Result<FetchResult> fetch(const FetchOptions& options,
                          const std::function<void(const FetchProgress&)>& progress,
                          std::stop_token stop) {
  auto result = Fetch(options, progress, std::move(stop)).run();
  if (result) return result;
  Error error = std::move(result).error().within("fetching " + options.prepare.output.string());
  if (error.code == ErrorCode::kExhausted && error.next.empty())
    error.next = "free space there; the same command continues";
  return fail(std::move(error));
}

} // namespace nsa::fetch
