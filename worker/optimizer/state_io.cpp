#include "worker/optimizer/state_io.h"

#include "common/manifest/manifest.h"
#include "common/safetensors/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <deque>
#include <future>

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

// A tensor of a file, and the place in a flat buffer that it fills.
struct Wanted {
  const safetensors::Reader& file;
  std::string prefix; // prefix of its name in the file
  size_t parameter;
  at::Tensor& flat;
};

// Reads a tensor into host memory. Its type differs from the buffer's if another precision mode
// wrote the file.
Result<at::Tensor> read_tensor(const Wanted& wanted, const FlatState& state) {
  const std::string name = wanted.prefix + state.name(wanted.parameter);
  const std::vector<int64_t> shape = state.shape(wanted.parameter);
  const auto entry = wanted.file.entries().find(name);
  const bool narrow =
      entry != wanted.file.entries().end() && entry->second.type == safetensors::DataType::kBF16;
  at::Tensor host = at::empty(shape, narrow ? at::kBFloat16 : at::kFloat);
  NSA_TRY(wanted.file.read(name, data_type(host), shape,
                           {static_cast<std::byte*>(host.data_ptr()), host.nbytes()}));
  return host;
}

// Other threads read tensors while this thread copies earlier ones to the device.
Status read_tensors(const std::vector<Wanted>& wanted, const FlatState& state) {
  constexpr size_t kReadAhead = 4;
  std::deque<std::future<Result<at::Tensor>>> reading;
  size_t next = 0;
  for (const Wanted& each : wanted) {
    for (; next < wanted.size() && reading.size() < kReadAhead; ++next)
      reading.push_back(std::async(
          std::launch::async, [&one = wanted[next], &state] { return read_tensor(one, state); }));
    NSA_TRY_ASSIGN(const at::Tensor host, reading.front().get());
    reading.pop_front();
    state.slice(each.flat, each.parameter).copy_(host);
  }
  return {};
}

Result<safetensors::Reader> open_model(const std::filesystem::path& folder,
                                       const FlatState& state) {
  NSA_TRY_ASSIGN(safetensors::Reader model, safetensors::Reader::open(folder / kModelFile));
  if (model.entries().size() != state.parameter_count())
    return fail(ErrorCode::kInvalidArgument,
                folder.string() + " holds " + std::to_string(model.entries().size()) +
                    " parameters, the model has " + std::to_string(state.parameter_count()),
                "use the model settings that the checkpoint was written with");
  return model;
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
  NSA_TRY_ASSIGN(const auto model, open_model(folder, state));
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < state.parameter_count(); ++i)
    wanted.push_back({model, "", i, state.masters});
  NSA_TRY(read_tensors(wanted, state));
  state.publish_masters();
  return {};
}

Result<Counters> load_state(const std::filesystem::path& folder, FlatState& state) {
  const at::NoGradGuard no_grad;
  NSA_TRY_ASSIGN(const auto model, open_model(folder, state));
  NSA_TRY_ASSIGN(const auto optimizer, safetensors::Reader::open(folder / kOptimizerFile));
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < state.parameter_count(); ++i) {
    wanted.push_back({model, "", i, state.masters});
    wanted.push_back({optimizer, "first_moment.", i, state.first_moments});
    wanted.push_back({optimizer, "second_moment.", i, state.second_moments});
  }
  NSA_TRY(read_tensors(wanted, state));
  NSA_TRY_ASSIGN(const int64_t updates, read_counter(optimizer.metadata(), kUpdates));
  Counters counters;
  NSA_TRY_ASSIGN(counters.non_finite_streak, read_counter(optimizer.metadata(), kStreak));
  state.updates.fill_(static_cast<double>(updates));
  state.publish_masters();
  return counters;
}

} // namespace nsa::train
