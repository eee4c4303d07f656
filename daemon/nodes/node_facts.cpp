#include "daemon/nodes/node_facts.h"

#include "common/base/build_info.h"
#include "daemon/proc/process.h"

#include <thread>
#include <unistd.h>

namespace nsa::control {

cluster::NodeHello read_node_facts() {
  cluster::NodeHello facts;
  facts.build = build_info().version + " (" + build_info().commit + ")";
  const auto boot_id = proc::read_boot_id();
  facts.boot_id = boot_id ? *boot_id : "";
  facts.processors = std::thread::hardware_concurrency();
  facts.memory_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return facts;
}

} // namespace nsa::control
