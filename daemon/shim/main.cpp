// nsa-shim --attempt-folder DIR [--cgroup-root DIR|none] [--linger-seconds N]
//
// nsad starts it (client.h). It reads DIR/launch.json. Descriptor 3, if open, is a pidfd of nsad;
// descriptor 4 is the listening socket of rank 0's store. Exit codes: 0 done and released, 1
// failed, 2 bad arguments, 3 the attempt has a shim or had one.
#include "common/base/log.h"
#include "daemon/shim/client/attempt_files.h"
#include "daemon/shim/shim.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <malloc.h>
#include <string>

namespace {

int usage(const char* why) {
  std::fprintf(stderr,
               "nsa-shim: %s\nusage: nsa-shim --attempt-folder DIR [--cgroup-root DIR|none] "
               "[--linger-seconds N]\n",
               why);
  return 2;
}

} // namespace

int main(int argc, char** argv) {
  // Do this before opening anything: the next file would get number 3 if it is free.
  const auto take = [](int inherited) {
    nsa::UniqueFd fd(::fcntl(inherited, F_DUPFD_CLOEXEC, 10));
    if (fd) nsa::UniqueFd(inherited).reset();
    return fd;
  };
  nsa::UniqueFd nsad = take(nsa::shim::kShimNsadFd);
  nsa::shim::ShimOptions options;
  options.store_listener = take(nsa::shim::kShimStoreFd);
  // These thresholds return memory to the kernel as soon as a burst of messages is over.
  ::mallopt(M_MMAP_THRESHOLD, 64 * 1024);
  ::mallopt(M_TRIM_THRESHOLD, 64 * 1024);

  std::string folder;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return usage("an option without a value");
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--attempt-folder")
      folder = value;
    else if (name == "--cgroup-root")
      options.cgroup_root = value;
    else if (name == "--linger-seconds")
      options.linger = nsa::from_seconds(std::atof(value.c_str()));
    else
      return usage(("unknown option " + name).c_str());
  }
  if (folder.empty()) return usage("--attempt-folder is missing");

  auto shim = nsa::shim::Shim::open(folder, std::move(options));
  if (!shim) {
    nsa::log::error("shim", shim.error().what);
    return shim.error().code == nsa::ErrorCode::kConflict ? 3 : 1;
  }
  if (auto done = (*shim)->run(std::move(nsad)); !done) {
    nsa::log::error("shim", done.error().what);
    return 1;
  }
  return 0;
}
