// Graphs: kernel launches that were captured once, and that one call enqueues again.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace nsa::runtime {

// A graph enqueues the same launches each time, on the same memory. Training thread only, or a
// thread that the training thread waits for.
class Graph {
public:
  virtual ~Graph() = default;
  virtual void replay() = 0;
};

// A recorder captures graphs that share one pool of device memory. Memory allocated between begin()
// and end() stays reserved while one of the graphs exists, even after its tensors are freed. Graphs
// must be replayed in the order of their capture. Between graphs that were not captured in
// sequence, only tensors from outside the pool keep their values.
class Recorder {
public:
  virtual ~Recorder() = default;
  // Until end(), work that any thread enqueues on the training thread's stream is captured and does
  // not run. Waiting for the device meanwhile is an error.
  virtual void begin() = 0;
  virtual std::unique_ptr<Graph> end() = 0; // another thread than that of begin() may call it
  // Returns whether the recorder can name the kernels that it captures. If so, take_launched()
  // returns the mangled names of kernels captured since its last call, between begin() and end(). A
  // name may be empty.
  virtual bool names_kernels() const { return false; }
  virtual std::vector<std::string> take_launched() { return {}; }
  // Drops the current capture after an error; does nothing if there is none.
  virtual void abandon() noexcept = 0;
};

} // namespace nsa::runtime
