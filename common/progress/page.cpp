#include "common/progress/page.h"

#include <fcntl.h>
#include <span>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace nsa::progress {

namespace {

// Mixes every bit of each word into the result (the constant is 2^64 divided by the golden ratio).
uint64_t check_of(std::span<const uint64_t> words) {
  uint64_t check = kPageMagic;
  for (const uint64_t word : words) {
    check = (check ^ word) * 0x9e37'79b9'7f4a'7c15ull;
    check ^= check >> 32;
  }
  return check;
}

} // namespace

// The words are stored in no particular order, because any mixture of two values fails the check.
template <class T> void Cell<T>::store(uint64_t number, const T& value) {
  const auto stored = std::bit_cast<Words>(Numbered{number, value});
  for (size_t i = 0; i < stored.size(); ++i)
    words[i].store(stored[i], std::memory_order_relaxed);
  check.store(check_of(stored), std::memory_order_relaxed);
}

template <class T> auto Cell<T>::load(bool is_older) const -> std::optional<Numbered> {
  Words loaded;
  for (size_t i = 0; i < loaded.size(); ++i)
    loaded[i] = words[i].load(std::memory_order_relaxed);
  const uint64_t found = check.load(std::memory_order_relaxed);
  if (found != check_of(loaded) && !(is_older && found == loaded[0])) return std::nullopt;
  return std::bit_cast<Numbered>(loaded);
}

Result<Page::Mapping> Page::map(int fd, bool writable) {
  void* at =
      ::mmap(nullptr, kPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail_errno("cannot map a progress page");
  return Mapping(static_cast<PageLayout*>(at), [](PageLayout* l) { ::munmap(l, kPageBytes); });
}

Result<Page> Page::create(int32_t rank, int32_t attempt) {
  UniqueFd fd(::memfd_create("nsa-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail_errno("cannot make a progress page");
  if (::ftruncate(fd.get(), kPageBytes) != 0) return fail_errno("cannot size a progress page");
  // Otherwise a worker could shrink the page while nsad reads it, and nsad would get SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("cannot seal a progress page");
  NSA_TRY_ASSIGN(Mapping layout, map(fd.get(), true));
  layout->version = kPageVersion;
  layout->rank = rank;
  layout->attempt = attempt;
  layout->magic = kPageMagic;
  return Page(std::move(fd), std::move(layout));
}

Result<Page> Page::open(UniqueFd fd, bool writable) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat a progress page");
  if (info.st_size != static_cast<off_t>(kPageBytes))
    return fail(ErrorCode::kCorrupt, "a progress page has " + std::to_string(info.st_size) +
                                         " bytes, " + std::to_string(kPageBytes) + " expected");
  // Reading a file that can shrink, or that is on another user's file system, may kill the reader.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail(ErrorCode::kCorrupt, "the progress page is not a sealed memory file");
  NSA_TRY_ASSIGN(Mapping layout, map(fd.get(), writable));
  Page page(std::move(fd), std::move(layout));
  const bool is_older = !writable && page.version_ > 0 && page.version_ < kPageVersion;
  if (page.layout_->magic != kPageMagic || (page.version_ != kPageVersion && !is_older))
    return fail(ErrorCode::kCorrupt,
                "not a progress page of version " + std::to_string(kPageVersion),
                "the programs are of different versions; restart the run with one installation");
  return page;
}

// The record numbers that one reader sees never decrease: a record that is not yet published as
// `latest` is not returned.
std::optional<HostRecord> Page::read_host() const {
  // The writer can overtake a reader, but only with a complete new record each time, so this ends.
  for (int tries = 0; tries < 5; ++tries) {
    const uint64_t latest = layout_->latest.load(std::memory_order_acquire);
    if (latest == 0) return std::nullopt;
    const auto newest = layout_->copies[latest % 2].load(!has_watermarks());
    if (newest && newest->number == latest) return newest->value;
    if (layout_->latest.load(std::memory_order_acquire) != latest) continue; // overtaken
    // The newest record is broken, because the writer was stopped during the update. The previous
    // one is complete.
    const auto before = layout_->copies[(latest + 1) % 2].load(!has_watermarks());
    if (before && before->number < latest) return before->value;
  }
  return std::nullopt;
}

DeviceRecord Page::read_device() const {
  const auto word = [this](DeviceWord w) {
    return layout_->device[static_cast<size_t>(w)].load(std::memory_order_acquire);
  };
  if (!has_watermarks()) {
    const auto host = read_host();
    return {host && host->step > 0 ? host->step - 1 : 0, {}, 0, 0};
  }
  // Loads the older word first, because a collective that completes in between has been started.
  const uint64_t completed = word(DeviceWord::kCompleted);
  return {word(DeviceWord::kCompletedStep), StepPosition::of_word(word(DeviceWord::kPosition)),
          word(DeviceWord::kStarted), completed};
}

CollectiveRing Page::read_collectives() const {
  CollectiveRing ring;
  if (!has_watermarks()) return ring;
  for (const Cell<Collective>& cell : layout_->collectives)
    if (const auto collective = cell.load(false)) ring.put(collective->value);
  return ring;
}

void Page::write_host(const HostRecord& record) {
  ++number_;
  layout_->copies[number_ % 2].store(number_, record);
  layout_->latest.store(number_, std::memory_order_release);
}

void Page::write_collective(const Collective& c) {
  layout_->collectives[c.number % CollectiveRing::kKept].store(c.number, c);
}

void Page::write_device(DeviceWord word, uint64_t value) {
  layout_->device[static_cast<size_t>(word)].store(value, std::memory_order_release);
}

void Writer::begin_step(uint64_t step, uint64_t tokens) {
  record_.step = step;
  record_.phase_number = 0;
  record_.tokens = tokens;
  record_.step_start_ns = MonotonicTime::now().nanoseconds;
}

// Entering the current phase again shows progress, and does not count as another phase.
void Writer::enter(Phase phase, uint64_t micro_step) {
  if (record_.phase != phase || record_.phase_number == 0) ++record_.phase_number;
  record_.phase = phase;
  record_.micro_step = micro_step;
  record_.phase_start_ns = MonotonicTime::now().nanoseconds;
  page_.write_host(record_);
}

uint64_t Writer::enqueue(CollectiveKind kind, uint32_t index) {
  ++record_.enqueued;
  page_.write_collective({record_.enqueued, record_.position(), kind, index});
  page_.write_host(record_);
  return record_.enqueued;
}

} // namespace nsa::progress
