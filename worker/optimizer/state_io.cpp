#include "worker/optimizer/state_io.h"

#include "common/manifest/manifest.h"
#include "common/safetensors/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace nsa::train {

namespace {

constexpr const char* kModelFile = manifest::kWeightsName;
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kUpdates = "updates";
constexpr const char* kStreak = "non_finite_streak";

Result<int64_t> read_counter(const safetensors::Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    return fail(ErrorCode::kCorrupt, std::string(kOptimizerFile) + " has no " + key);
  return std::strtoll(found->second.c_str(), nullptr, 10);
}

safetensors::DataType data_type(const at::Tensor& flat) {
  return flat.scalar_type() == at::kBFloat16 ? safetensors::DataType::kBF16
                                             : safetensors::DataType::kF32;
}

// Reads parameter i of a flat buffer.
Status read_tensor(const safetensors::Reader& file, const std::string& prefix, size_t i,
                   const FlatState& state, const at::Tensor& flat) {
  // The file's type differs if another precision mode wrote it.
  const auto entry = file.entries().find(prefix + state.name(i));
  const bool narrow =
      entry != file.entries().end() && entry->second.type == safetensors::DataType::kBF16;
  const at::Tensor host = at::empty(state.shape(i), narrow ? at::kBFloat16 : at::kFloat);
  NSA_TRY(file.read(prefix + state.name(i), data_type(host), state.shape(i),
                    {static_cast<std::byte*>(host.data_ptr()), host.nbytes()}));
  state.slice(flat, i).copy_(host);
  return {};
}

Status read_masters(const std::filesystem::path& folder, FlatState& state) {
  NSA_TRY_ASSIGN(const auto model, safetensors::Reader::open(folder / kModelFile));
  if (model.entries().size() != state.parameter_count())
    return fail(ErrorCode::kInvalidArgument,
                folder.string() + " holds " + std::to_string(model.entries().size()) +
                    " parameters, the model has " + std::to_string(state.parameter_count()),
                "use the model settings that the checkpoint was written with");
  for (size_t i = 0; i < state.parameter_count(); ++i)
    NSA_TRY(read_tensor(model, "", i, state, state.masters));
  return {};
}

} // namespace

SnapshotMaker::SnapshotMaker(const FlatState& state, runtime::Runtime& runtime,
                             std::shared_ptr<std::byte> memory)
    : state_(state), runtime_(runtime), memory_(std::move(memory)) {}

size_t SnapshotMaker::bytes_of(const FlatState& state) {
  return state.masters.nbytes() + state.first_moments.nbytes() + state.second_moments.nbytes();
}

std::vector<checkpoint::FileContent> SnapshotMaker::copy(const Counters& counters) {
  std::byte* masters = memory_.get();
  std::byte* first = masters + state_.masters.nbytes();
  std::byte* second = first + state_.first_moments.nbytes();
  runtime_.copy_to_host(state_.masters, masters);
  runtime_.copy_to_host(state_.first_moments, first);
  runtime_.copy_to_host(state_.second_moments, second);
  const double updates = runtime_.read_later(state_.updates)->take().at(0);
  runtime_.synchronize();

  checkpoint::FileContent model{kModelFile, {}, {{"format", "nsa"}}};
  checkpoint::FileContent optimizer{kOptimizerFile,
                                    {},
                                    {{kUpdates, std::to_string(static_cast<int64_t>(updates))},
                                     {kStreak, std::to_string(counters.non_finite_streak)}}};
  for (size_t i = 0; i < state_.parameter_count(); ++i) {
    const BucketPlan::Slot& slot = state_.plan().slots[i];
    auto view = [&](const std::string& prefix, const at::Tensor& flat, const std::byte* from) {
      const size_t bytes = flat.element_size();
      return safetensors::TensorView{prefix + state_.name(i),
                                     data_type(flat),
                                     state_.shape(i),
                                     {from + slot.offset * bytes, slot.count * bytes}};
    };
    model.tensors.push_back(view("", state_.masters, masters));
    optimizer.tensors.push_back(view("first_moment.", state_.first_moments, first));
    optimizer.tensors.push_back(view("second_moment.", state_.second_moments, second));
  }
  return {std::move(model), std::move(optimizer)};
}

Status load_weights(const std::filesystem::path& folder, FlatState& state) {
  const at::NoGradGuard no_grad;
  NSA_TRY(read_masters(folder, state));
  state.publish_masters();
  return {};
}

Result<Counters> load_state(const std::filesystem::path& folder, FlatState& state) {
  const at::NoGradGuard no_grad;
  NSA_TRY(read_masters(folder, state));
  NSA_TRY_ASSIGN(const auto optimizer, safetensors::Reader::open(folder / kOptimizerFile));
  for (size_t i = 0; i < state.parameter_count(); ++i) {
    NSA_TRY(read_tensor(optimizer, "first_moment.", i, state, state.first_moments));
    NSA_TRY(read_tensor(optimizer, "second_moment.", i, state, state.second_moments));
  }
  NSA_TRY_ASSIGN(const int64_t updates, read_counter(optimizer.metadata(), kUpdates));
  Counters counters;
  NSA_TRY_ASSIGN(counters.non_finite_streak, read_counter(optimizer.metadata(), kStreak));
  state.updates.fill_(static_cast<double>(updates));
  state.publish_masters();
  return counters;
}

} // namespace nsa::train
