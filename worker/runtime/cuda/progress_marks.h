// The GPU itself stores marks into the progress page, in stream order. So other processes can see
// what has completed without asking this one. Training thread only.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace nsa::runtime {

class ProgressMarks {
public:
  // Maps the page that contains the words into the device's address space.
  Status attach(void* device_words);
  ~ProgressMarks();

  // Stores word `word` after the stream's work so far.
  void store(cudaStream_t stream, size_t word, uint64_t value);

private:
  using WriteValue = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  void* page_ = nullptr;
  CUdeviceptr words_ = 0;
  WriteValue write_value_ = nullptr;
};

} // namespace nsa::runtime
