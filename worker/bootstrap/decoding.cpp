#include "worker/bootstrap/decoding.h"

#include "worker/inference/needle_counter.h"
#include "worker/inference/samples.h"

namespace nsa::train {

Result<Decoding> open_decoding(const spec::RunSpec& spec, const std::vector<data::Source>& sources,
                               model::LanguageModel& model, at::Device device,
                               const std::filesystem::path& run_folder) {
  Decoding decoding;
  if (spec.eval.samples > 0) {
    NSA_TRY_ASSIGN(auto opened,
                   inference::SampleWriter::open(*sources.front().dataset, spec.eval.samples,
                                                 static_cast<uint64_t>(spec.train.seed),
                                                 run_folder / "samples"));
    decoding.write_samples = [&model, device, writer = std::move(opened)](uint64_t step,
                                                                          const auto& moved) {
      writer.write(model, device, step, moved);
    };
  }
  if (spec.eval.needles > 0) {
    NSA_TRY_ASSIGN(auto opened, inference::NeedleCounter::open(sources, spec.eval.needles));
    if (opened.empty())
      return fail(ErrorCode::kInvalidArgument,
                  "eval.needles: no data set of the run is one of synthetic:needle",
                  "set eval.needles = 0, or fetch one: nsactl data fetch synthetic:needle");
    decoding.count_needles = [&model, device, counter = std::move(opened)](const auto& moved) {
      return counter.count(model, device, moved);
    };
  }
  return decoding;
}

} // namespace nsa::train
