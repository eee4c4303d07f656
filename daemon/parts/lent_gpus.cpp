#include "daemon/parts/lent_gpus.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "daemon/plan/plan.h"

namespace nsa::parts {

std::vector<std::string> gpus_of(const wire::LaunchPlan& plan) {
  if (plan.ranks.empty()) return {};
  const auto& environment = plan.ranks.front().environment;
  const auto visible = environment.find(std::string(plan::kVisibleDevices));
  if (visible == environment.end() || visible->second.empty()) return {};
  return split(visible->second, ',');
}

LentGpus::LentGpus(net::EventLoop& loop, Options options)
    : options_(std::move(options)), watch_(loop, slots_, [this](const gpu::Xid& xid) {
        constexpr size_t kMost = 1000; // nobody reads more about a GPU that keeps failing
        if (new_xids_.size() < kMost) new_xids_.emplace_back(xid.uuid, xid.number);
        tell();
      }) {}

void LentGpus::start(const control::GpuWatch::ListGpus& list,
                     std::function<void(const std::vector<std::string>& names)> listed) {
  if (!options_.resources.has_gpus()) return listed({});
  watch_.start(options_.resources, options_.state_folder, list,
               [this, listed = std::move(listed), first = true]() mutable {
                 if (!std::exchange(first, false)) return tell();
                 std::vector<std::string> names;
                 for (const gpu::Gpu& gpu : slots_.gpus().list)
                   names.push_back(gpu.name);
                 listed(names);
               });
}

void LentGpus::tell() {
  if (slots_.gpus().list.empty()) return;
  NodeGpus told;
  const std::vector<wire::GpuView> views = slots_.gpu_views(); // in the order of the list
  for (size_t i = 0; i < views.size(); ++i) {
    const gpu::Gpu& gpu = slots_.gpus().list[i];
    told.list.push_back({gpu, watch_.xids_of(gpu.uuid),
                         views[i].state.value().value_or(wire::GpuStatus::kForeign), views[i].run,
                         views[i].why});
  }
  told.new_xids = new_xids_;
  if (options_.send(frame_of(Message::kGpus, told))) new_xids_.clear();
}

Status LentGpus::lease(const RunId& run, const std::vector<std::string>& uuids, gpu::Gpus seen) {
  if (uuids.empty()) return {};
  slots_.set_gpus(std::move(seen));
  Status leased = slots_.acquire_gpus(run, uuids);
  if (leased) return {};
  return fail(ErrorCode::kUnavailable, "a GPU cannot be had: " + leased.error().what,
              leased.error().next);
}

void LentGpus::take_back(const RunId& run, const std::vector<std::string>& uuids) {
  if (auto taken = slots_.take_back(run, spec::Device::kCuda, uuids); !taken)
    log::warning("parts", "a GPU is somebody else's by now",
                 {{"run", run}, {"why", taken.error().what}});
}

void LentGpus::set_shim(const RunId& run, const ShimIdentity& shim) {
  slots_.set_shim(run, {options_.state_folder, run, shim.boot_id, shim.pid, shim.start_time_ticks});
}

} // namespace nsa::parts
