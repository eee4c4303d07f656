#include "tests/fake_worker/collective.h"

#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace nsa::fake {

Result<Collective> Collective::open(const std::string& attempt_folder, int world_size) {
  const std::string path = attempt_folder + "/fake-collective";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd || ::ftruncate(fd.get(), kSteps * sizeof(uint64_t)) != 0)
    return fail_errno("cannot open " + path);
  void* at =
      ::mmap(nullptr, kSteps * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return fail_errno("cannot map " + path);
  return Collective(static_cast<std::atomic<uint64_t>*>(at), world_size);
}

[[gnu::noinline]] Collective::Wish Collective::reduce(uint64_t number, Wish own) {
  std::atomic<uint64_t>& counter = counters_[number % kSteps];
  // A counter that is used again still holds its earlier rounds.
  const uint64_t due = (number / kSteps + 1) * world_size_;
  counter.fetch_add(1 + (own.stop ? uint64_t{1} << 32 : 0) +
                    (own.with_checkpoint ? uint64_t{1} << 48 : 0));
  while ((counter.load() & 0xffffffff) < due) {
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
  const uint64_t all = counter.load();
  return {(all >> 32 & 0xffff) != 0, all >> 48 != 0};
}

} // namespace nsa::fake
