// From a request line to a Call: never a crash. An accepted line is within its bounds, and the same
// when it is encoded again.
#include "daemon/api/log_reader.h"
#include "daemon/api/route.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)nsa::api::parse_cri(text);
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos) return 0;
  const auto target = nsa::net::parse_target(text.substr(blank + 1));
  if (!target) return 0;
  const auto call = nsa::api::parse_call(std::string(text.substr(0, blank)), *target);
  if (!call) {
    if (call.error().status < 400 || call.error().error.what.empty()) std::abort();
    return 0;
  }
  if (call->rank < -1 || call->attempt < 0 || call->limit < 1 || call->after < 0) std::abort();
  if (call->run.size() > 256) std::abort();
  const auto again = nsa::net::decode_component(nsa::net::encode_component(call->run));
  if (again != call->run) std::abort();
  return 0;
}
