// Tape: a part of a step that was recorded once: graphs, and what the host does between them (a
// mark, a collective), in order.
#pragma once

#include "worker/graphs/graph.h"

#include <functional>
#include <vector>

namespace nsa::train {

class Tape {
public:
  // Runs `work`, which enqueues on the device and cuts the tape where something must not be
  // recorded. Each graph is enqueued as soon as it is recorded, so that this is a first play. An
  // exception drops what is being recorded; the tape is of no use then.
  void record(runtime::Recorder& recorder, const std::function<void()>& work);
  // Within `work`, on any thread that it waits for: ends the graph, does `act`, begins the next
  // graph. Every play does `act` again, so it may hold nothing of the recorded step.
  void cut(std::function<void()> act);

  bool recorded() const { return !graphs_.empty(); }
  // What `work` did, by as many launches as there are graphs.
  void play();
  size_t graphs() const { return graphs_.size(); }

private:
  void end_graph();

  runtime::Recorder* recorder_ = nullptr; // while recording
  std::vector<std::unique_ptr<runtime::Graph>> graphs_;
  std::vector<std::function<void()>> acts_; // one less: act i comes behind graph i
};

} // namespace nsa::train
