#include "worker/graphs/tape.h"

#include <utility>

namespace nsa::train {

void Tape::record(runtime::Recorder& recorder, const std::function<void()>& work) {
  graphs_.clear();
  acts_.clear();
  recorder_ = &recorder;
  try {
    recorder.begin();
    work();
    end_graph();
  } catch (...) {
    recorder.abandon();
    graphs_.clear();
    throw;
  }
  recorder_ = nullptr;
}

void Tape::cut(std::function<void()> act) {
  end_graph();
  act();
  acts_.push_back(std::move(act));
  recorder_->begin();
}

void Tape::end_graph() {
  graphs_.push_back(recorder_->end());
  graphs_.back()->replay();
}

void Tape::play() {
  for (size_t i = 0; i < graphs_.size(); ++i) {
    graphs_[i]->replay();
    if (i < acts_.size()) acts_[i]();
  }
}

} // namespace nsa::train
