#include "nsa_model/ops/step_part.h"

namespace nsa::ops {

namespace detail {
std::atomic<PartListener*> listener{nullptr};
}

void listen_to_parts(PartListener* listener) {
  detail::listener.store(listener, std::memory_order_release);
}
PartListener* part_listener() {
  return detail::listener.load(std::memory_order_acquire);
}

} // namespace nsa::ops
