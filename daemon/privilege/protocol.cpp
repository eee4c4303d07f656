#include "daemon/privilege/protocol.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/pass_descriptors.h"

#include <algorithm>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::privilege {

namespace {

// Errors keep their code, because callers act on it.
constexpr ErrorCode kLastCode = ErrorCode::kInternal;

nlohmann::json error_json(const Error& error) {
  return {{"code", static_cast<int>(error.code)}, {"what", error.what}, {"next", error.next}};
}

Error error_of(const nlohmann::json& json) {
  const int code = std::clamp(json.value("code", 0), 0, static_cast<int>(kLastCode));
  // The child may belong to the submitter. Its words go into logs and events, so they are cut.
  constexpr size_t kMaxWords = 4096;
  return {static_cast<ErrorCode>(code), json.value("what", "it failed").substr(0, kMaxWords),
          json.value("next", "").substr(0, kMaxWords)};
}

} // namespace

Result<nlohmann::json> parse_answer(std::string_view text) {
  NSA_TRY_ASSIGN(nlohmann::json json, parse_json(text, "the starter's answer", {kMaxAnswer, 64}));
  try {
    if (const auto error = json.find("error"); error != json.end()) return fail(error_of(*error));
    return std::move(json.at("value"));
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "the starter's answer: " + reason_of(e));
  }
}

Result<JobBody> parse_body(std::string_view text) {
  NSA_TRY_ASSIGN(const nlohmann::json json, parse_json(text, "a job", {kMaxBody, 64}));
  try {
    return JobBody{json.at("call").get<std::string>(), json.at("arguments")};
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "a job: " + reason_of(e));
  }
}

Result<Answer> read_answer(int socket, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  std::string text;
  std::vector<UniqueFd> descriptors;
  char chunk[1 << 16];
  while (true) {
    const double left = to_seconds(end - MonotonicTime::now());
    pollfd ready{socket, POLLIN, 0};
    const int woken = left <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left * 1e3) + 1);
    if (woken < 0 && errno == EINTR) continue;
    if (woken <= 0) return fail(ErrorCode::kUnavailable, "the starter did not answer in time");
    ReceivedBytes got = receive_with_descriptors(socket, chunk, kMaxDescriptors, MSG_DONTWAIT);
    if (got.count < 0 && errno == EAGAIN) continue;
    if (got.count < 0) return fail_errno("cannot read the starter's answer");
    if (got.count == 0) break;
    std::move(got.descriptors.begin(), got.descriptors.end(), std::back_inserter(descriptors));
    if (text.size() + static_cast<size_t>(got.count) > kMaxAnswer)
      return fail(ErrorCode::kExhausted, "the starter's answer is too long");
    text.append(chunk, static_cast<size_t>(got.count));
  }
  if (text.empty())
    return fail(ErrorCode::kUnavailable, "a child of the starter ended without an answer");
  NSA_TRY_ASSIGN(nlohmann::json value, parse_answer(text));
  return Answer{std::move(value), std::move(descriptors)};
}

void write_answer(int socket, const Result<Answer>& answer) {
  const nlohmann::json json = answer ? nlohmann::json{{"value", answer->value}}
                                     : nlohmann::json{{"error", error_json(answer.error())}};
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<int> descriptors;
  if (answer)
    for (const UniqueFd& fd : answer->descriptors)
      descriptors.push_back(fd.get());
  const ssize_t put = send_with_descriptors(socket, text, descriptors);
  // If this fails, the caller has gone.
  if (put > 0 && static_cast<size_t>(put) < text.size())
    (void)write_all(socket, text.data() + put, text.size() - static_cast<size_t>(put));
}

Result<UniqueFd> make_body(const JobBody& body) {
  UniqueFd fd(::memfd_create("nsa-job", MFD_CLOEXEC));
  if (!fd) return fail_errno("cannot make a memory file");
  const std::string text = nlohmann::json{{"call", body.call}, {"arguments", body.arguments}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxBody)
    return fail(ErrorCode::kExhausted, "a job for the starter is too long");
  NSA_TRY(write_all(fd.get(), text.data(), text.size()));
  return fd;
}

Result<JobBody> read_body(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return fail_errno("cannot stat a job");
  if (!S_ISREG(info.st_mode) || info.st_size < 0 || static_cast<size_t>(info.st_size) > kMaxBody)
    return fail(ErrorCode::kInvalidArgument, "a job is no file, or too long");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(ErrorCode::kCorrupt, "a job was cut short");
    done += static_cast<size_t>(got);
  }
  return parse_body(text);
}

} // namespace nsa::privilege
