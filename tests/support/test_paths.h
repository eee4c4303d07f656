// The places of the checkout and of the built programs. These are functions, not macros, so only
// one object file contains the paths. The compiler cache can then serve every checkout.
#pragma once

#include <string>

namespace nsa::test {

std::string source_folder();  // of the checkout
std::string program_folder(); // nsactl, nsad, nsa-shim, nsa-worker
std::string library_folder(); // libnsa_ops.so and the GPU plug-ins

} // namespace nsa::test
