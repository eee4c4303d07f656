#include "common/progress/page.h"

#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace nsa::progress {

namespace {

void store_fields(PageLayout::Copy& copy, const HostRecord& r, size_t count) {
  const uint64_t words[8] = {r.step,
                             r.micro_step,
                             uint64_t{r.phase_number} << 32 | static_cast<uint64_t>(r.phase),
                             static_cast<uint64_t>(r.phase_start_ns),
                             static_cast<uint64_t>(r.step_start_ns),
                             r.tokens,
                             r.enqueued,
                             r.batch_index};
  for (size_t i = 0; i < count; ++i)
    copy.words[i].store(words[i], std::memory_order_relaxed);
}

// The record of sequence number `sequence`, if that copy is whole and was not rewritten meanwhile
// (sequence lock; Boehm, "Can seqlocks get along with programming language memory models?", 2012).
std::optional<HostRecord> load_copy(const PageLayout::Copy& copy, uint64_t sequence) {
  if (copy.end.load(std::memory_order_acquire) != sequence) return std::nullopt;
  uint64_t words[8];
  for (size_t i = 0; i < 8; ++i)
    words[i] = copy.words[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (copy.begin.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  HostRecord r;
  r.step = words[0];
  r.micro_step = words[1];
  r.phase = static_cast<Phase>(words[2] & UINT32_MAX);
  r.phase_number = static_cast<uint32_t>(words[2] >> 32);
  r.phase_start_ns = static_cast<int64_t>(words[3]);
  r.step_start_ns = static_cast<int64_t>(words[4]);
  r.tokens = words[5];
  r.enqueued = words[6];
  r.batch_index = words[7];
  return r;
}

Result<PageLayout*> map_page(int fd, bool writable) {
  void* at =
      ::mmap(nullptr, kPageBytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail_errno("cannot map a progress page");
  return static_cast<PageLayout*>(at);
}

} // namespace

Result<Page> Page::create(int32_t rank, int32_t attempt) {
  UniqueFd fd(::memfd_create("nsa-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail_errno("cannot make a progress page");
  if (::ftruncate(fd.get(), kPageBytes) != 0) return fail_errno("cannot size a progress page");
  // A worker must not be able to shrink the page under a reader's feet (SIGBUS in nsad).
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("cannot seal a progress page");
  NSA_TRY_ASSIGN(PageLayout * layout, map_page(fd.get(), true));
  layout->version = kPageVersion;
  layout->rank = rank;
  layout->attempt = attempt;
  layout->magic = kPageMagic;
  return Page(std::move(fd), layout);
}

Result<Page> Page::open(UniqueFd fd, bool writable) {
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat a progress page");
  if (info.st_size != static_cast<off_t>(kPageBytes))
    return fail(ErrorCode::kCorrupt, "a progress page has " + std::to_string(info.st_size) +
                                         " bytes, " + std::to_string(kPageBytes) + " expected");
  // Of a file that can shrink, or that lies on somebody's file system, a read may end the reader.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail(ErrorCode::kCorrupt, "a progress page is no memory file that keeps its size");
  NSA_TRY_ASSIGN(PageLayout * layout, map_page(fd.get(), writable));
  Page page(std::move(fd), layout);
  const bool older = !writable && layout->version == kVersionWithoutWatermarks;
  if (layout->magic != kPageMagic || (layout->version != kPageVersion && !older))
    return fail(ErrorCode::kCorrupt,
                "not a progress page of version " + std::to_string(kPageVersion),
                "the programs are of different versions; restart the run with one installation");
  return page;
}

Page::Page(Page&& other) noexcept
    : fd_(std::move(other.fd_)), layout_(std::exchange(other.layout_, nullptr)) {}

Page& Page::operator=(Page&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(layout_, other.layout_);
  return *this;
}

Page::~Page() {
  if (layout_ != nullptr) ::munmap(layout_, kPageBytes);
}

std::optional<HostRecord> Page::read_host() const {
  // Two tries a copy: the writer can overtake a reader, but not forever, since each overtaking is a
  // whole new record; after that the older copy is as good an answer.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const uint64_t latest = layout_->latest.load(std::memory_order_acquire);
    if (latest == 0) return std::nullopt;
    if (auto record = load_copy(layout_->copies[latest % 2], latest)) return record;
  }
  const uint64_t latest = layout_->latest.load(std::memory_order_acquire);
  return latest > 1 ? load_copy(layout_->copies[(latest - 1) % 2], latest - 1) : std::nullopt;
}

DeviceRecord Page::read_device() const {
  const auto word = [this](DeviceWord w) {
    return layout_->device[static_cast<size_t>(w)].load(std::memory_order_acquire);
  };
  if (!has_watermarks()) return {word(DeviceWord::kCompletedStep), {}, 0, 0};
  // The older word first: a collective that completes in between has been started.
  const uint64_t completed = word(DeviceWord::kCompleted);
  return {word(DeviceWord::kCompletedStep), StepPosition::of_word(word(DeviceWord::kPosition)),
          word(DeviceWord::kStarted), completed};
}

CollectiveRing Page::read_collectives() const {
  CollectiveRing ring;
  if (!has_watermarks()) return ring;
  for (size_t i = 0; i < CollectiveRing::kKept; ++i) {
    const PageLayout::Slot& slot = layout_->collectives[i];
    const uint64_t number = slot.number.load(std::memory_order_acquire);
    const uint64_t what = slot.what.load(std::memory_order_relaxed);
    const Collective read{number, slot.step.load(std::memory_order_relaxed),
                          static_cast<CollectiveKind>(what >> 32), static_cast<uint32_t>(what),
                          slot.bytes.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) == number) ring.slots[i] = read;
  }
  return ring;
}

void Page::write_host(const HostRecord& record) {
  const uint64_t sequence = layout_->latest.load(std::memory_order_relaxed) + 1;
  PageLayout::Copy& copy = layout_->copies[sequence % 2];
  copy.begin.store(sequence, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  store_fields(copy, record, 8);
  copy.end.store(sequence, std::memory_order_release);
  layout_->latest.store(sequence, std::memory_order_release);
}

void Page::write_collective(const Collective& c) {
  PageLayout::Slot& slot = layout_->collectives[c.number % CollectiveRing::kKept];
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.step.store(c.step, std::memory_order_relaxed);
  slot.what.store(static_cast<uint64_t>(c.kind) << 32 | c.index, std::memory_order_relaxed);
  slot.bytes.store(c.bytes, std::memory_order_relaxed);
  slot.number.store(c.number, std::memory_order_release);
}

void Page::write_device(DeviceWord word, uint64_t value) {
  layout_->device[static_cast<size_t>(word)].store(value, std::memory_order_release);
}

void Page::write_host_torn_for_test(const HostRecord& record) {
  const uint64_t sequence = layout_->latest.load(std::memory_order_relaxed) + 1;
  PageLayout::Copy& copy = layout_->copies[sequence % 2];
  copy.begin.store(sequence, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  store_fields(copy, record, 4);
}

void Writer::begin_step(uint64_t step, uint64_t tokens) {
  record_.step = step;
  record_.phase_number = 0;
  record_.tokens = tokens;
  record_.step_start_ns = MonotonicTime::now().nanoseconds;
}

void Writer::enter(Phase phase, uint64_t micro_step) {
  record_.phase = phase;
  record_.micro_step = micro_step;
  ++record_.phase_number;
  record_.phase_start_ns = MonotonicTime::now().nanoseconds;
  page_.write_host(record_);
}

uint64_t Writer::enqueue(CollectiveKind kind, uint32_t index, uint64_t bytes) {
  ++record_.enqueued;
  page_.write_collective({record_.enqueued, record_.step, kind, index, bytes});
  page_.write_host(record_);
  return record_.enqueued;
}

} // namespace nsa::progress
