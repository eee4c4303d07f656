// nsa-model: loads a checkpoint's model and samples from it, evaluates it or computes its logits.
// nsactl starts it; common/wire/model_request.h says what it reads and writes.
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/dataset/tokenizer.h"
#include "common/safetensors/safetensors.h"
#include "common/wire/api_types.h"
#include "common/wire/error_view.h"
#include "worker/inference/generate.h"
#include "worker/inference/measure.h"
#include "worker/inference/saved_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <iostream>

namespace nsa::inference {

namespace {

// Writes one line and flushes, because the reader shows it while the next one is computed.
void print(const nlohmann::json& line) {
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

Result<wire::ModelRequest> read_request() {
  NSA_TRY_ASSIGN(const std::string text, read_file_or_pipe("/dev/stdin", JsonLimits{}.bytes));
  NSA_TRY_ASSIGN(const auto json, parse_json(text, "the request", {}));
  try {
    return json.get<wire::ModelRequest>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kInvalidArgument,
                std::string("the request has the wrong shape: ") + e.what());
  }
}

Result<wire::ModelEnd> sample(SavedModel& saved, const wire::ModelRequest& request) {
  NSA_TRY_ASSIGN(const auto kind, dataset::parse_tokenizer(request.tokenizer));
  NSA_TRY_ASSIGN(const auto tokenizer, dataset::load_tokenizer(kind, request.ranks_file));
  if (tokenizer->vocabulary_size() > saved.spec.model.vocabulary)
    return fail(ErrorCode::kInvalidArgument,
                "tokenizer " + request.tokenizer + " has " +
                    std::to_string(tokenizer->vocabulary_size()) + " ids, the model " +
                    std::to_string(saved.spec.model.vocabulary),
                "name the tokenizer that the model was trained with: --tokenizer");
  std::vector<dataset::Token> ids;
  tokenizer->encode(request.prompt, ids);
  Generation what;
  what.prompt.push_back(tokenizer->separator()); // every training document begins with it
  what.prompt.insert(what.prompt.end(), ids.begin(), ids.end());
  what.tokens = request.tokens;
  what.vocabulary = tokenizer->vocabulary_size();
  what.end = tokenizer->separator();
  what.rule = {request.temperature, request.top_p, request.seed};
  Utf8Pieces pieces;
  const auto tell = [](const std::string& text) {
    if (!text.empty()) print(wire::ModelText{text});
  };
  const Generated done = generate(*saved.model, saved.runtime->device(), what, [&](int64_t token) {
    const auto id = static_cast<dataset::Token>(token);
    tell(pieces.add(tokenizer->decode({&id, 1})));
  });
  tell(pieces.rest());
  wire::ModelEnd end;
  end.prompt_tokens = static_cast<int64_t>(what.prompt.size());
  end.tokens = done.tokens;
  end.prefill_seconds = done.prefill_seconds;
  end.seconds = done.decode_seconds;
  end.end_of_document = done.ended;
  return end;
}

Result<wire::ModelEnd> logits(SavedModel& saved, const wire::ModelRequest& request) {
  const auto rows = static_cast<int64_t>(request.ids.size());
  const auto length = rows == 0 ? 0 : static_cast<int64_t>(request.ids.front().size());
  const at::Tensor ids = at::empty({rows, length}, at::kLong);
  int64_t* into = ids.mutable_data_ptr<int64_t>();
  for (const std::vector<int64_t>& row : request.ids) {
    const auto outside = [&](int64_t id) { return id < 0 || id >= saved.spec.model.vocabulary; };
    if (length == 0 || static_cast<int64_t>(row.size()) != length ||
        std::any_of(row.begin(), row.end(), outside))
      return fail(ErrorCode::kInvalidArgument,
                  "ids must be rows of one length, of ids below the vocabulary");
    into = std::copy(row.begin(), row.end(), into);
  }
  if (rows == 0) return fail(ErrorCode::kInvalidArgument, "there are no ids");
  const at::NoGradGuard no_grad;
  const at::Tensor values =
      saved.model->logits(ids.to(saved.runtime->device())).to(at::kCPU, at::kFloat).contiguous();
  NSA_TRY(safetensors::write(
      request.out,
      {{"logits",
        safetensors::DataType::kF32,
        values.sizes().vec(),
        {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}}},
      {}));
  return wire::ModelEnd{};
}

Result<wire::ModelEnd> carry_out(const wire::ModelRequest& request) {
  NSA_TRY_ASSIGN(SavedModel saved, open_saved_model(request));
  const auto task = request.task.value();
  if (!task)
    return fail(ErrorCode::kInvalidArgument, "no task is named " + request.task.text(),
                "install nsactl and nsa-model of one build");
  auto end = *task == wire::ModelTask::kSample     ? sample(saved, request)
             : *task == wire::ModelTask::kEvaluate ? measure(saved, request)
                                                   : logits(saved, request);
  if (end) end->device = saved.description();
  return end;
}

Result<wire::ModelEnd> run() {
  try {
    NSA_TRY_ASSIGN(const wire::ModelRequest request, read_request());
    return carry_out(request);
  } catch (const c10::OutOfMemoryError& e) {
    return fail(ErrorCode::kExhausted, e.what_without_backtrace(), "use --device cpu");
  } catch (const c10::Error& e) {
    return fail(ErrorCode::kInternal, e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kExhausted, "out of host memory");
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, e.what());
  }
}

} // namespace

} // namespace nsa::inference

int main() {
  nsa::log::set_level(nsa::log::Level::kWarning);
  const auto end = nsa::inference::run();
  if (!end) {
    nsa::inference::print({{"error", nsa::wire::to_view(end.error())}});
    return 1;
  }
  nsa::inference::print(*end);
  return 0;
}
