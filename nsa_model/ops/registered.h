// Calls of our own operators through LibTorch's dispatcher, so that CPU and CUDA code is found by
// the arguments' device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace nsa::ops {

// The operator of that name, "nsa::product" say. Throws c10::Error where none is registered.
template <class Signature> auto registered(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

} // namespace nsa::ops
