#include "tests/fake_worker/collective.h"

#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <utility>

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
  // A counter that is used again still holds the counts of its earlier rounds. This rank counts
  // them: the first step of an attempt may be any.
  const uint64_t due = ++rounds_[number % kSteps] * world_size_;
  const auto wish = [](bool wanted, int bit) { return wanted ? uint64_t{1} << bit : 0; };
  counter.fetch_add(1 + wish(own.stop, 16) + wish(own.with_checkpoint, 32) +
                    wish(own.checkpoint, 48));
  while ((counter.load() & 0xffff) < due) {
    const timespec pause{0, 200'000};
    ::nanosleep(&pause, nullptr);
  }
  const uint64_t all = counter.load();
  uint64_t& before = checkpoints_[number % kSteps];
  const bool checkpoint = std::exchange(before, all >> 48) != all >> 48;
  return {(all >> 16 & 0xffff) != 0, (all >> 32 & 0xffff) != 0, checkpoint};
}

} // namespace nsa::fake
