// The CPU as a device. Tests override one of its functions.
#pragma once

#include "worker/runtime/runtime.h"

namespace nsa::test {

class WrappedRuntime : public runtime::Runtime {
public:
  explicit WrappedRuntime(runtime::Runtime& inner) : inner_(inner) {}
  int steps_in_flight() const override { return inner_.steps_in_flight(); }
  at::Device device() const override { return inner_.device(); }
  std::string device_name() const override { return inner_.device_name(); }
  std::map<std::string, std::string> versions() const override { return inner_.versions(); }
  std::string why_bf16_is_slow() const override { return inner_.why_bf16_is_slow(); }
  runtime::DeviceMemory memory() const override { return inner_.memory(); }
  void synchronize() override { inner_.synchronize(); }
  std::unique_ptr<runtime::Reading> read_later(const at::Tensor& values) override {
    return inner_.read_later(values);
  }
  std::shared_ptr<const runtime::DeviceEvent> record_event() override {
    return inner_.record_event();
  }
  Status attach_progress(void* words) override { return inner_.attach_progress(words); }
  void mark(progress::DeviceWord word, uint64_t value) override { inner_.mark(word, value); }
  void stall_device() override { inner_.stall_device(); }
  std::shared_ptr<std::byte> allocate_host(size_t bytes) override {
    return inner_.allocate_host(bytes);
  }
  void copy_to_host(const at::Tensor& from, std::byte* into) override {
    inner_.copy_to_host(from, into);
  }
  Result<std::unique_ptr<comm::Collectives>>
  make_collectives(Rank rank, int world, const comm::RendezvousAddress& address,
                   Duration limit) override {
    return inner_.make_collectives(rank, world, address, limit);
  }

private:
  runtime::Runtime& inner_;
};

} // namespace nsa::test
