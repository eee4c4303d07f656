// Multiplies a gradient by a factor that the device knows.
//
// `composed` uses ATen operations on any device and dtype. libnsa_ops_cuda.so has a kernel. No
// autograd. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace nsa::ops {

// x *= factor, a scalar on x's device of at least FP32. The product is rounded once. With a factor
// of 1 the kernel does not read x.
void scale_gradient_(const at::Tensor& x, const at::Tensor& factor);

// The operation behind it, as nsa::scale_gradient_.
namespace composed {
void scale_gradient_(const at::Tensor& x, const at::Tensor& factor);
} // namespace composed

} // namespace nsa::ops
