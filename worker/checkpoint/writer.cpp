#include "worker/checkpoint/writer.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/kill_point.h"
#include "common/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

namespace nsa::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporarySuffix = ".tmp";

// Renames `temporary` to `final`. A checkpoint of that step may exist already: a damaged one that
// resume skipped, and that the run has reached again. Then one call swaps the two, so that a
// checkpoint exists at every moment.
Status take_name(const fs::path& temporary, const fs::path& final) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_NOREPLACE) == 0)
    return {};
  if (errno != EEXIST && errno != EINVAL) return fail_errno("cannot rename to " + final.string());
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    return {};
  }
  // File systems without these flags (NFS) get a plain rename, which fails if `final` is not empty.
  if (::rename(temporary.c_str(), final.c_str()) != 0)
    return fail_errno("cannot rename to " + final.string());
  return {};
}

} // namespace

Result<std::unique_ptr<Writer>> Writer::open(fs::path folder, Retention retention,
                                             std::function<void(const Report&)> on_report) {
  NSA_TRY(make_folder(folder));
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() != kTemporarySuffix ||
        !manifest::step_of_folder(it->path().stem().string()))
      continue;
    log::info("checkpoint", "removing an unfinished checkpoint", {{"folder", name}});
    std::error_code ignored;
    fs::remove_all(it->path(), ignored);
  }
  return std::unique_ptr<Writer>(new Writer(std::move(folder), retention, std::move(on_report)));
}

Writer::Writer(fs::path folder, Retention retention, std::function<void(const Report&)> on_report)
    : folder_(std::move(folder)), retention_(retention), on_report_(std::move(on_report)),
      thread_([this] { run(); }) {}

Writer::~Writer() {
  wait_idle();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Writer::start(Snapshot snapshot) {
  {
    const std::lock_guard lock(mutex_);
    next_ = std::move(snapshot);
    busy_ = true;
  }
  changed_.notify_all();
}

void Writer::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

bool Writer::idle() const {
  const std::lock_guard lock(mutex_);
  return !busy_;
}

void Writer::run() {
  ::pthread_setname_np(::pthread_self(), "checkpoint");
  while (true) {
    std::optional<Snapshot> snapshot;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || next_; });
      if (!next_) return;
      snapshot.swap(next_);
    }
    const Report report = write(*snapshot);
    snapshot.reset(); // frees its memory before the report
    if (on_report_) on_report_(report);
    {
      const std::lock_guard lock(mutex_);
      busy_ = false;
    }
    changed_.notify_all();
  }
}

Report Writer::write(const Snapshot& snapshot) {
  const MonotonicTime begin = MonotonicTime::now();
  Report report;
  report.step = snapshot.manifest.step;
  report.tokens = snapshot.manifest.tokens;
  report.finite = snapshot.manifest.finite;
  report.stall = snapshot.stall;
  report.folder = folder_ / manifest::folder_name(report.step);
  if (auto status = write_folder(snapshot, report); !status) {
    std::error_code ignored;
    fs::remove_all(report.folder.string() + kTemporarySuffix, ignored);
    report.error = std::move(status).error();
    if (report.error->code == ErrorCode::kExhausted)
      report.error->next = "free space on the disk of " + folder_.string() +
                           "; older checkpoints are kept and training continues";
  } else {
    apply_retention(report);
  }
  report.write = MonotonicTime::now() - begin;
  return report;
}

Status Writer::write_folder(const Snapshot& snapshot, Report& report) {
  const fs::path temporary = report.folder.string() + kTemporarySuffix;
  std::error_code ec;
  fs::remove_all(temporary, ec);
  NSA_TRY(make_folder(temporary));
  manifest::Manifest m = snapshot.manifest;
  m.files.clear();
  for (const FileContent& file : snapshot.files) {
    pass_kill_point(KillPoint::kCheckpointFile);
    NSA_TRY_ASSIGN(const safetensors::WrittenFile written,
                   safetensors::write(temporary / file.name, file.tensors, file.metadata));
    m.files.push_back({file.name, written.bytes, written.checksum});
    report.bytes += written.bytes;
    pass_kill_point(KillPoint::kCheckpointFileWritten);
  }
  m.written_at = format_rfc3339(WallTime::now());
  const std::string text = manifest::to_json(m).dump(2) + "\n";
  pass_kill_point(KillPoint::kCheckpointManifest);
  NSA_TRY(write_file_atomic(temporary / manifest::kManifestName, text));
  pass_kill_point(KillPoint::kCheckpointManifestWritten);
  report.bytes += text.size();
  report.manifest_checksum = checksum_hex(text);
  NSA_TRY(sync_folder(temporary));
  pass_kill_point(KillPoint::kCheckpointRename);
  NSA_TRY(take_name(temporary, report.folder));
  NSA_TRY(sync_folder(folder_));
  pass_kill_point(KillPoint::kCheckpointRenamed);
  // Reads the checkpoint back. One that cannot be read must not cause deletion of an older, good
  // one.
  if (auto good = manifest::verify(report.folder, m); !good) {
    verified_.erase(m.step);
    return fail(std::move(good).error().within("reading the checkpoint back"));
  }
  verified_.insert(m.step);
  return {};
}

void Writer::apply_retention(Report& report) {
  std::vector<manifest::Kept> present;
  for (const manifest::Found& found : manifest::list(folder_, false)) {
    bool good = found.manifest && verified_.count(found.step) > 0;
    // Checkpoints of earlier attempts are verified once, when they first come up for deletion.
    if (!good && found.manifest && manifest::verify(found.folder, *found.manifest)) {
      verified_.insert(found.step);
      good = true;
    }
    present.push_back({found.step, good, found.manifest && found.manifest->finite});
  }
  const uint64_t oldest = manifest::oldest_of_the_last(present, retention_.keep_last);
  for (const auto& [step, folder] : manifest::list_set_aside(folder_)) {
    if (step >= oldest) continue;
    std::error_code ec;
    if (fs::remove_all(folder, ec); ec)
      log::warning("checkpoint", "cannot delete a distrusted checkpoint: " + ec.message(),
                   {{"folder", folder.string()}});
  }
  for (const uint64_t step : manifest::steps_to_delete(std::move(present), retention_.keep_last,
                                                       retention_.keep_every_steps)) {
    // Renames first, because a folder with a final name is always complete.
    const fs::path folder = folder_ / manifest::folder_name(step);
    const fs::path doomed = folder.string() + kTemporarySuffix;
    std::error_code ec;
    pass_kill_point(KillPoint::kCheckpointDelete);
    fs::rename(folder, doomed, ec);
    pass_kill_point(KillPoint::kCheckpointDoomed);
    if (!ec) fs::remove_all(doomed, ec);
    pass_kill_point(KillPoint::kCheckpointDeleted);
    if (ec) {
      log::warning("checkpoint", "cannot delete an old checkpoint: " + ec.message(),
                   {{"folder", folder.string()}});
      continue;
    }
    verified_.erase(step);
    report.deleted.push_back(step);
  }
}

} // namespace nsa::checkpoint
