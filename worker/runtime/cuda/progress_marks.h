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
  // Maps the page that holds the words into the device's address space.
  Status attach(void* device_words);
  ~ProgressMarks();

  // Word `word` of them, behind the stream's work so far.
  void store(cudaStream_t stream, size_t word, uint64_t value);

private:
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  void* page_ = nullptr;
  CUdeviceptr words_ = 0;
  WriteValue write_value_ = nullptr;
};

} // namespace nsa::runtime
