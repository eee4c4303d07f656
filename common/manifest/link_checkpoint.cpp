#include "common/base/file.h"
#include "common/base/unique_fd.h"
#include "common/manifest/manifest.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace nsa::manifest {

namespace fs = std::filesystem;

namespace {

// The checkpoint's writer has fsynced the originals. A copy must be fsynced here.
Status sync_copy(const fs::path& copy) {
  const UniqueFd fd(::open(copy.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno("cannot open " + copy.string());
  if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync " + copy.string());
  return {};
}

// A hard link keeps the bytes even if the other name is deleted. If the file system has no hard
// links, or is another one, the file is copied.
Status share_file(const fs::path& from, const fs::path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return {};
  if (errno == ENOENT) return fail_errno("cannot read " + from.string());
  std::error_code error;
  if (!fs::copy_file(from, to, error))
    return fail(error == std::errc::no_space_on_device ? ErrorCode::kExhausted : ErrorCode::kSystem,
                "cannot copy " + from.string() + " to " + to.string() + ": " + error.message());
  return sync_copy(to);
}

Status fill(const fs::path& checkpoint, const fs::path& folder, bool with_optimizer) {
  NSA_TRY(make_folder(folder, 0750));
  NSA_TRY(share_file(checkpoint / kManifestName, folder / kManifestName));
  // Reads the manifest from the new folder, so that it is the one that is kept.
  NSA_TRY_ASSIGN(Manifest manifest, read(folder));
  if (!with_optimizer) manifest = weights_alone(std::move(manifest));
  for (const File& file : manifest.files)
    NSA_TRY(share_file(checkpoint / file.name, folder / file.name));
  NSA_TRY(verify(folder, manifest));
  return sync_folder(folder);
}

} // namespace

Manifest weights_alone(Manifest manifest) {
  std::erase_if(manifest.files, [](const File& file) { return file.name != kWeightsName; });
  return manifest;
}

Status link_checkpoint(const fs::path& checkpoint, const fs::path& folder, bool with_optimizer) {
  const fs::path unfinished = folder.string() + ".tmp";
  std::error_code error;
  fs::remove_all(unfinished, error); // left by an nsad that was killed
  Status done = fill(checkpoint, unfinished, with_optimizer);
  if (done) {
    fs::rename(unfinished, folder, error);
    if (error)
      done = fail(ErrorCode::kSystem, "cannot make " + folder.string() + ": " + error.message());
  }
  if (done) done = sync_folder(folder.parent_path());
  if (!done) fs::remove_all(unfinished, error);
  return done;
}

} // namespace nsa::manifest
