#pragma once
// Device memory and error checks of the kernel check program. One thread.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nsa::kernels::check {

inline void cuda_check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// `count` elements of T on the device, poisoned: every byte is 0xFF, which reads as NaN and as
// index -1.
template <typename T> class DeviceBuffer {
public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    if (count == 0) return;
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
    poison();
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  T* get() const { return data_; }
  std::size_t size() const { return count_; }
  void poison() {
    if (count_ > 0) cuda_check(cudaMemset(data_, 0xFF, count_ * sizeof(T)), "cudaMemset");
  }
  std::vector<T> to_host() const {
    std::vector<T> host(count_);
    if (count_ > 0) {
      cuda_check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
                 "copy to host");
    }
    return host;
  }
  void from_host(const std::vector<T>& host) {
    cuda_check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
               "copy to device");
  }

private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

} // namespace nsa::kernels::check
