// Tape is a part of a step that was captured once: graphs, and the host's actions between them (a
// mark, a collective), in order.
#pragma once

#include "worker/graphs/graph.h"

#include <functional>
#include <vector>

namespace nsa::train {

class Tape {
public:
  // Runs `work`, which enqueues on the device and calls cut() where something must not be captured.
  // Each graph is replayed as soon as it is captured, so this is already the first play. An
  // exception drops the current capture, and the tape is then unusable.
  void record(runtime::Recorder& recorder, const std::function<void()>& work);
  // Call it inside `work`, on any thread that `work` waits for. It ends the graph, runs `act`, and
  // begins the next graph. Every play runs `act` again, so `act` must not hold data of the captured
  // step.
  void cut(std::function<void()> act);

  bool recorded() const { return !graphs_.empty(); }
  // Repeats the work with one launch for each graph.
  void play();
  size_t graphs() const { return graphs_.size(); }

private:
  void end_graph();

  runtime::Recorder* recorder_ = nullptr; // set while recording
  std::vector<std::unique_ptr<runtime::Graph>> graphs_;
  std::vector<std::function<void()>> acts_; // act i runs after graph i; there is one act fewer than
                                            // graphs
};

} // namespace nsa::train
