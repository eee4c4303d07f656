// tensorboard_probe FOLDER writes a run of two attempts, for tests/oracle/tensorboard_oracle.py.
// Attempt 1 makes steps 1 to 10 with loss = step, and ends in the middle of a record. Attempt 2
// continues at step 7 with loss = step + 0.5, up to 12.
#include "worker/telemetry/tensorboard.h"

#include <cstdio>
#include <filesystem>

namespace {

using nsa::telemetry::TensorBoardWriter;

TensorBoardWriter write_attempt(const std::filesystem::path& folder, int attempt, int first,
                                int last, double shift) {
  TensorBoardWriter writer(folder, attempt, first);
  writer.run_file("[train]\nsteps = 12",
                  {{"schema", 1},
                   {"run", {{"name", "probe"}}},
                   {"data", {{"path", "/somewhere"}}},
                   {"train", {{"steps", 12}, {"learning_rate", 0.5}, {"deterministic", true}}},
                   {"parallel", {{"device", "cpu"}}}},
                  first - 1);
  for (int number = first; number <= last; ++number) {
    nsa::wire::RankStep step;
    step.step = static_cast<uint64_t>(number);
    step.loss = number + shift;
    step.gates = {{"3/selected", 0.25}, {"0/selected", 0.99}, {"3/window", 1.0}};
    writer.step(step);
  }
  return writer;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tensorboard_probe FOLDER\n");
    return 2;
  }
  const std::filesystem::path torn = write_attempt(argv[1], 1, 1, 10, 0).path();
  std::filesystem::resize_file(torn, std::filesystem::file_size(torn) - 7);
  write_attempt(argv[1], 2, 7, 12, 0.5);
}
