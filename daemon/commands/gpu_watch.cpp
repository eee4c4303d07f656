#include "daemon/commands/gpu_watch.h"

#include "common/base/log.h"
#include "daemon/proc/process.h"
#include "daemon/state/xid.h"

#include <algorithm>
#include <cstdlib>

namespace nsa::control {

namespace {
constexpr Duration kInterval = std::chrono::seconds(5); // between two readings of the GPUs' health
} // namespace

void GpuWatch::start(const spec::NodeResourcesSection& resources, const std::string& state_folder,
                     const ListGpus& list, std::function<void()> seen) {
  seen_ = std::move(seen);
  auto locks = gpu::HostLocks::open(resources.gpu_locks, state_folder, [](const gpu::Holder& h) {
    return proc::open_identified({h.boot_id, static_cast<pid_t>(h.pid), h.start_time_ticks})
        .has_value();
  });
  // Only runs on GPUs need the locks. Such a run is told the reason when it asks for a GPU.
  if (locks)
    slots_.use_gpus(std::move(*locks));
  else
    log::warning("control", "GPUs are not used", {{"why", locks.error().what}});
  const GpuSelection selection{resources.gpus, resources.exclude_gpus, visible_devices()};
  slots_.select_gpus(selection);
  slots_.expect_gpus();
  list([this, selection](Result<gpu::Gpus> gpus) {
    if (gpus)
      for (const std::string& name : selection.missing(*gpus))
        log::warning("gpu", "resources.gpus names a GPU that is not there", {{"gpu", name}});
    if (!gpus) log::error("control", "the GPUs cannot be listed", {{"why", gpus.error().what}});
    slots_.set_gpus(std::move(gpus).value_or(gpu::Gpus{}));
    if (seen_) seen_();
    if (!slots_.gpus().list.empty()) watch();
  });
}

std::optional<std::string> GpuWatch::visible_devices() {
  const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
  return devices == nullptr ? std::nullopt : std::optional<std::string>(devices);
}

void GpuWatch::watch() {
  gpu::Monitor::Events events;
  events.sample = [this](gpu::Gpus gpus) {
    loop_.post([this, gpus = std::move(gpus)]() mutable {
      slots_.set_gpus(std::move(gpus));
      if (seen_) seen_();
    });
  };
  events.xid = [this](const gpu::Xid& xid) { loop_.post([this, xid] { note(xid); }); };
  monitor_ = std::make_unique<gpu::Monitor>(std::move(events), kInterval);
}

void GpuWatch::note(const gpu::Xid& xid) {
  ++xids_[xid.uuid][xid.number];
  log::warning("control", "the driver reports an error on a GPU",
               {{"gpu", xid.uuid}, {"xid", std::to_string(xid.number)}});
  on_xid_(xid);
}

std::vector<RankGpu> GpuWatch::gpus_of(const state::Run& run) const {
  std::vector<RankGpu> gpus;
  const std::vector<std::string>& slots = run.attempt.slots;
  for (size_t r = 0; r < slots.size(); ++r)
    for (const gpu::Gpu& g : slots_.gpus().list) {
      if (g.uuid != slots[r]) continue;
      gpus.push_back({static_cast<Rank>(r), g, xids_of(g.uuid)});
    }
  return gpus;
}

std::vector<uint64_t> GpuWatch::xids_of(const std::string& uuid) const {
  std::vector<uint64_t> numbers;
  if (const auto found = xids_.find(uuid); found != xids_.end())
    for (const auto& [number, count] : found->second)
      numbers.push_back(number);
  return numbers;
}

void GpuWatch::add_samples(metrics::DaemonSample& daemon) const {
  daemon.driver = slots_.gpus().driver;
  for (const gpu::Gpu& g : slots_.gpus().list) {
    metrics::GpuSample& sample = daemon.gpus.emplace_back();
    sample.index = g.index;
    sample.uuid = g.uuid;
    sample.model = g.name;
    sample.memory_bytes = g.memory_bytes;
    sample.used_bytes = g.used_bytes;
    sample.processes = g.processes.size();
    sample.utilization_ratio = g.utilization_ratio;
    sample.temperature_celsius = g.temperature_celsius;
    sample.power_watts = g.power_watts;
    sample.sm_clock_hertz = g.sm_clock_hertz;
    if (g.ecc_corrected) sample.ecc_errors["corrected"] = *g.ecc_corrected;
    if (g.ecc_uncorrected) sample.ecc_errors["uncorrected"] = *g.ecc_uncorrected;
    sample.is_quarantined = slots_.is_quarantined(g.uuid);
    if (const auto found = xids_.find(g.uuid); found != xids_.end())
      sample.xid_errors = found->second;
    // Every error number starts at 0, so that a rate over the counter also shows the first error.
    for (const uint64_t xid : state::hardware_xids())
      sample.xid_errors.try_emplace(xid, 0);
  }
}

} // namespace nsa::control
