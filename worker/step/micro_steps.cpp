#include "worker/step/micro_steps.h"

#include "common/base/log.h"
#include "nsa_model/ops/step_part.h"
#include "worker/profile/graph_parts.h"

#include <ATen/core/grad_mode.h>

#include <limits>

namespace nsa::train {

namespace {
// Steps that are launched one by one before capture. The first makes what is made once. After it, a
// static graph's set of parameters is known.
constexpr int64_t kStepsBefore = 2;
} // namespace

MicroSteps::MicroSteps(Parts parts, double loss_scale)
    : p_(std::move(parts)), loss_scale_(loss_scale) {}

void MicroSteps::run(const std::shared_ptr<const data::Batch>& batch, MicroStep micro_step,
                     const std::function<void()>& at_backward) {
  at_backward_ = at_backward;
  if (!replayable(*batch, micro_step)) {
    pass(p_.loss(batch), micro_step, nullptr);
    return;
  }
  p_.staged->bring(batch);
  Recording& recording = recordings_[{micro_step.first, micro_step.last}];
  if (!recording.tape.recorded()) {
    record(recording, micro_step);
    return;
  }
  recording.tape.play();
  p_.reducer.replayed(recording.arrived);
}

bool MicroSteps::replayable(const data::Batch& batch, MicroStep micro_step) {
  if (!p_.staged) return false;
  const std::pair<int64_t, int64_t> shape{batch.rows, batch.sequence_length};
  if (shape != shape_) {
    if (recorder_) p_.runtime.synchronize(); // a running graph must not lose its memory
    recordings_.clear();
    recorder_.reset();
    shape_ = shape;
    steps_of_shape_ = 0;
  }
  steps_of_shape_ += micro_step.first;
  return steps_of_shape_ > kStepsBefore && !micro_step.poisoned;
}

void MicroSteps::pass(const at::Tensor& unscaled, MicroStep micro_step, Tape* tape) {
  at::Tensor loss;
  {
    const ops::PartScope part(ops::StepPart::kLoss);
    loss = loss_scale_ == 1.0 ? unscaled : unscaled.mul(loss_scale_);
    if (micro_step.poisoned) loss = loss.mul(std::numeric_limits<double>::quiet_NaN());
  }
  const auto backward_begins = [this, last = micro_step.last] {
    at_backward_();
    p_.reducer.begin_micro_step(last);
  };
  if (tape != nullptr)
    tape->cut(backward_begins);
  else
    backward_begins();
  {
    const ops::PartScope part(ops::StepPart::kAutograd); // nodes with a part of their own are not
                                                         // counted here
    loss.backward();
  }
  p_.reducer.end_micro_step();
  const at::NoGradGuard no_grad;
  const ops::PartScope part(ops::StepPart::kLoss);
  p_.loss_word.add_(loss.detach());
}

void MicroSteps::record(Recording& recording, MicroStep micro_step) {
  Tape& tape = recording.tape;
  p_.reducer.hand_ready_buckets_to([this, &tape](size_t count) {
    tape.cut([this, count] { p_.reducer.start_next_buckets(count); });
  });
  try {
    if (!recorder_) {
      auto made = p_.runtime.make_recorder();
      if (!made) throw std::runtime_error(made.error().what);
      recorder_ = std::move(*made);
    }
    std::optional<profile::TiedRecorder> tied;
    if (recorder_->names_kernels()) tied.emplace(*recorder_);
    runtime::Recorder& recorder = tied ? *tied : *recorder_;
    tape.record(recorder, [&] { pass(p_.staged->loss(), micro_step, &tape); });
  } catch (const std::exception& e) { // includes out-of-memory errors; launched steps had enough
                                      // memory
    const std::string why = e.what(); // LibTorch appends hints and a stack trace to its message
    throw RecordingError("a step cannot be recorded as CUDA graphs: " +
                         why.substr(0, why.find('\n')));
  }
  p_.reducer.hand_ready_buckets_to({});
  recording.arrived = p_.reducer.arrived();
  log::info("train", "recorded a micro-step",
            {{"graphs", std::to_string(tape.graphs())},
             {"first", micro_step.first ? "yes" : "no"},
             {"last", micro_step.last ? "yes" : "no"}});
}

size_t MicroSteps::graphs() const {
  size_t count = 0;
  for (const auto& [place, recording] : recordings_)
    count += recording.tape.graphs();
  return count;
}

} // namespace nsa::train
