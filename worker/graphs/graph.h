// Graphs: launches that a device recorded once and that one call enqueues again.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace nsa::runtime {

// Enqueues the same launches each time, on the same memory. Training thread, or one that it waits
// for.
class Graph {
public:
  virtual ~Graph() = default;
  virtual void replay() = 0;
};

// Makes graphs that share one set of device memory: what is allocated between begin() and end() is
// theirs as long as one of them lives, also after the tensors are gone. They are replayed in the
// order in which they were recorded, and only tensors from elsewhere carry anything from one to
// another that was not recorded right after it.
class Recorder {
public:
  virtual ~Recorder() = default;
  // From here to end(), what is enqueued on the training thread's stream, by whichever thread, is
  // recorded and does not run; waiting for the device in between is an error.
  virtual void begin() = 0;
  virtual std::unique_ptr<Graph> end() = 0; // on another thread than begin() if need be
  // Whether it can name what it records. If so: mangled names of the kernels that were recorded
  // since it was last asked, within begin() and end(); empty for those without a name.
  virtual bool names_kernels() const { return false; }
  virtual std::vector<std::string> take_launched() { return {}; }
  // Drops what is being recorded, after an error; nothing if nothing is.
  virtual void abandon() noexcept = 0;
};

} // namespace nsa::runtime
