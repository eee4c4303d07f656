#pragma once
// Compares results with FP64 loops on the host, and counts failures. One thread.

#include <cuda_bf16.h>

#include <string>
#include <vector>

#include "bench/kernel_cases/device.h"

namespace nsa::kernels::check {

using Bf16 = __nv_bfloat16;
using Doubles = std::vector<double>;

inline double to_double(Bf16 value) {
  return static_cast<double>(__bfloat162float(value));
}
inline double to_double(float value) {
  return static_cast<double>(value);
}
// Rounds to BF16 and back.
inline double rounded(double value) {
  return to_double(__double2bfloat16(value));
}

// Returns ||value - expected|| / ||expected||. Returns NaN if a value is not finite, and ||value||
// if all expected values are zero.
double relative_error(const std::vector<Bf16>& value, const Doubles& expected);
double relative_error(const std::vector<float>& value, const Doubles& expected);

// Prints a line, and counts a failure if the error is above the limit or NaN.
void report(const std::string& what, double error, double limit);
// The error of a BF16 result may be 1.5 times that of the exact result rounded to BF16.
void expect_bf16(const std::string& what, const DeviceBuffer<Bf16>& value, const Doubles& expected);
void expect_fp32(const std::string& what, const DeviceBuffer<float>& value,
                 const Doubles& expected);
int failures(); // of this process

} // namespace nsa::kernels::check
