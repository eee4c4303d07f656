// Checks whether the trainer can be started on this node: that it exists, and that the loader finds
// every library of it. LibTorch is the library that is usually missing. The check does not run the
// trainer. It asks the loader, and a good answer holds until the program changes.
//
// Any thread may call it. It blocks for as long as the loader takes.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

namespace nsa::control {

class WorkerCheck {
public:
  explicit WorkerCheck(std::string program) : program_(std::move(program)) {}

  // Fails with kUnsupported if the trainer cannot be started; `next` is what to type.
  Status check();

private:
  using Stamp = std::tuple<uint64_t, int64_t, int64_t, int64_t>; // inode, size, time of change

  const std::string program_;
  std::mutex mutex_;
  std::optional<Stamp> good_; // the program whose libraries were all found
};

// Asks the loader for missing libraries. check() caches its good answers.
Status find_libraries(const std::string& program);

} // namespace nsa::control
