#include "daemon/gpu/gpu_json.h"

namespace nsa::gpu {

namespace {

template <class Visit> void visit_members(Visit visit) {
  visit("index", &Gpu::index);
  visit("uuid", &Gpu::uuid);
  visit("name", &Gpu::name);
  visit("memory_bytes", &Gpu::memory_bytes);
  visit("used_bytes", &Gpu::used_bytes);
  visit("processes", &Gpu::processes);
  visit("utilization_ratio", &Gpu::utilization_ratio);
  visit("temperature_celsius", &Gpu::temperature_celsius);
  visit("power_watts", &Gpu::power_watts);
  visit("sm_clock_hertz", &Gpu::sm_clock_hertz);
  visit("ecc_corrected", &Gpu::ecc_corrected);
  visit("ecc_uncorrected", &Gpu::ecc_uncorrected);
}

template <class T>
concept MayBeAbsent = requires(T value) { value.has_value(); };

} // namespace

void to_json(nlohmann::json& json, const Gpu& gpu) {
  json = nlohmann::json::object();
  visit_members([&](const char* key, auto member) {
    const auto& value = gpu.*member;
    if constexpr (!MayBeAbsent<decltype(value)>)
      json[key] = value;
    else if (value)
      json[key] = *value;
  });
}

void from_json(const nlohmann::json& json, Gpu& gpu) {
  visit_members([&](const char* key, auto member) {
    auto& value = gpu.*member;
    if constexpr (!MayBeAbsent<decltype(value)>)
      json.at(key).get_to(value);
    else if (const auto found = json.find(key); found != json.end())
      found->get_to(value.emplace());
  });
}

} // namespace nsa::gpu
