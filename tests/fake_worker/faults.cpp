#include "tests/fake_worker/faults.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace nsa::fake {

namespace {

constexpr std::array<std::string_view, 12> kKinds = {
    "none", "stop_signal", "mutex_deadlock", "spin",      "skip_collective", "data_stall",
    "kill", "exit",        "segfault",       "slow_step", "abort",           "graphs"};

std::mutex first, second;

// Takes both locks in the given order. Waits before the second one until the other thread has its
// first lock.
[[gnu::noinline]] void lock_in_order(std::mutex& mine, std::mutex& other, std::atomic<int>& held) {
  const std::lock_guard<std::mutex> have(mine);
  held.fetch_add(1);
  while (held.load() < 2)
    std::this_thread::yield();
  const std::lock_guard<std::mutex> never(other);
}

} // namespace

bool is_fault_kind(std::string_view kind) {
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

[[gnu::noinline]] void deadlock_on_mutexes() {
  std::atomic<int> held{0};
  std::thread other([&] { lock_in_order(second, first, held); });
  lock_in_order(first, second, held);
  other.join();
}

[[gnu::noinline]] void spin_in_user_space() {
  volatile double x = 1.0;
  while (true)
    x = x * 1.0000001 + 1e-9;
}

[[gnu::noinline]] void wait_for_data_forever() {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  char byte;
  while (::read(ends[0], &byte, 1) != 1) {
  }
}

} // namespace nsa::fake
