// Marks that the GPU itself stores into the progress page, in stream order: what has completed is
// visible from outside without asking the process. Training thread only.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace nsa::runtime {

class ProgressMarks {
public:
  // Maps the page that holds the two words into the device's address space.
  Status attach(void* device_words);
  ~ProgressMarks();

  void mark_phase(cudaStream_t stream, uint64_t step, uint32_t phase);
  void mark_step(cudaStream_t stream, uint64_t step, uint32_t phase);

private:
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  void store(cudaStream_t stream, size_t word, uint64_t value);
  void* page_ = nullptr;
  CUdeviceptr words_ = 0;
  WriteValue write_value_ = nullptr;
};

} // namespace nsa::runtime
