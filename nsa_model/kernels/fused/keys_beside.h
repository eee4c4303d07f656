#pragma once
// dK and dV on the side stream, beside what waits for memory. Those of the window in pieces, one a
// round of list backward, and the rest behind. Without the window, those of the selected branch's
// first tokens, of some kv heads, beside the first round.
// Host code, any thread; the destructor joins the streams.

#include <algorithm>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/fused/side_stream.h"
#include "nsa_model/kernels/fused/workspace.h"

namespace nsa::kernels {

class KeysBeside {
public:
  KeysBeside(const FusedInputs& inputs, const Schedule& schedule)
      : ctas_(inputs.tuning.beside_ctas), turns_(std::max(1, inputs.tuning.beside_turns)) {
    if (!schedule.listed || ctas_ <= 0) return;
    if (is_on(inputs, kSliding)) {
      all_ = range_backward_columns(inputs.shape, kWindow);
      branch_ = kSliding;
      all_rounds_ = schedule.all_backward_rounds(inputs.shape);
    } else {
      lanes_ = first_tokens_beside(inputs, schedule);
      if (lanes_.lanes == 0) return;
      all_ = 1;
      branch_ = kSelected;
    }
  }
  // Whether it takes a branch's dK and dV, or some of them.
  bool takes(int branch) const { return all_ > 0 && branch == branch_; }
  const BesideLanes& lanes() const { return lanes_; } // of the first tokens' it takes those
  int branch() const { return branch_; }

  // Before the kernel that a piece is to follow into its places, which then signals launched().
  // What the pieces read was written before the first of them.
  cudaError_t fork(cudaStream_t stream) {
    return fork_.is_forked() ? cudaSuccess : fork_.fork(stream);
  }
  bool has_more() const { return done_ < all_; }
  cudaError_t join() { return fork_.is_forked() ? fork_.join() : cudaSuccess; }

  cudaStream_t stream() const { return fork_.side().stream; }
  cudaEvent_t launched() const { return fork_.side().launched; }
  cudaError_t piece(RangeBackwardParams params) {
    int columns = all_;
    if (branch_ == kSliding) {
      columns = piece_columns();
      const int turns = all_rounds_ == 1 ? turns_ : (columns + ctas_ / 2) / ctas_;
      params.first_column = done_;
      params.columns = columns;
      params.most_ctas = (columns + std::max(turns, 1) - 1) / std::max(turns, 1);
    }
    params.is_beside = branch_ == kSelected;
    done_ += columns;
    const SideStream& side = fork_.side();
    const cudaError_t error = cudaStreamWaitEvent(side.stream, side.launched);
    return error == cudaSuccess ? launch_range_backward(params, side.stream) : error;
  }
  // The rest of the window, and the streams are one again.
  cudaError_t finish(RangeBackwardParams params, cudaStream_t stream) {
    params.first_column = done_;
    params.columns = all_ - done_;
    const cudaError_t error =
        params.columns > 0 ? launch_range_backward(params, stream) : cudaSuccess;
    return error == cudaSuccess ? join() : error;
  }

private:
  // Beside one round so many as was fastest. Beside several what leaves the last launch, which has
  // the GPU for itself, one column a multiprocessor.
  int piece_columns() const {
    const int left = all_rounds_ == 1 ? 0 : std::min(range_workers(), all_ / 2);
    const int wanted = std::max(1, (all_ - left) / all_rounds_);
    return std::min({ctas_ * turns_, wanted, all_ - done_});
  }

  int ctas_;
  int turns_;
  int branch_ = -1;
  int all_ = 0; // columns of the window, or one
  int all_rounds_ = 1;
  BesideLanes lanes_;
  int done_ = 0;
  SideFork fork_;
};

} // namespace nsa::kernels
