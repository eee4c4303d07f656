// Calls our own operators through LibTorch's dispatcher, which chooses CPU or CUDA code by the
// arguments' device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace nsa::ops {

// The operator with that name, e.g. "nsa::product". Throws c10::Error if it is not registered.
template <class Signature> auto registered(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

} // namespace nsa::ops
