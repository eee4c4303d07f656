#include "worker/runtime/cuda/progress_marks.h"

#include "common/base/log.h"

#include <string>

namespace nsa::runtime {

namespace {
constexpr size_t kPageBytes = 4096;

std::string cuda_text(cudaError_t error) {
  return cudaGetErrorString(error);
}
} // namespace

Status ProgressMarks::attach(void* device_words) {
  const auto address = reinterpret_cast<uintptr_t>(device_words);
  void* page = reinterpret_cast<void*>(address / kPageBytes * kPageBytes);
  // Uses the CUDA runtime's table of entry points, so that the plug-in need not link with
  // libcuda.so.
  cudaDriverEntryPointQueryResult found{};
  void* entry = nullptr;
  if (const auto e = cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &entry, 11070,
                                                      cudaEnableDefault, &found);
      e != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return fail(ErrorCode::kUnavailable, "the driver has no cuStreamWriteValue64",
                "update the NVIDIA driver");
  if (const auto e =
          cudaHostRegister(page, kPageBytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
      e != cudaSuccess)
    return fail(ErrorCode::kSystem,
                "the progress page cannot be mapped for the GPU: " + cuda_text(e));
  page_ = page;
  void* mapped = nullptr;
  if (const auto e = cudaHostGetDevicePointer(&mapped, page, 0); e != cudaSuccess)
    return fail(ErrorCode::kSystem, "the progress page has no device address: " + cuda_text(e));
  words_ = reinterpret_cast<CUdeviceptr>(mapped) + (address - reinterpret_cast<uintptr_t>(page));
  write_value_ = reinterpret_cast<WriteValue>(entry);
  return {};
}

ProgressMarks::~ProgressMarks() {
  if (page_ != nullptr) cudaHostUnregister(page_);
}

void ProgressMarks::store(cudaStream_t stream, size_t word, uint64_t value) {
  if (write_value_ == nullptr) return;
  const CUresult result = write_value_(stream, words_ + word * sizeof(uint64_t), value, 0);
  if (result == CUDA_SUCCESS) return;
  log::error("runtime", "the GPU's progress marks stop: cuStreamWriteValue64 failed",
             {{"code", std::to_string(static_cast<int>(result))}});
  write_value_ = nullptr;
}

} // namespace nsa::runtime
