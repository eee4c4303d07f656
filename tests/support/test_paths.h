// Where the checkout and the built programs lie. Functions and not macros: only one object file
// holds the paths, so that the compiler cache serves every checkout.
#pragma once

#include <string>

namespace nsa::test {

std::string source_folder();  // of the checkout
std::string program_folder(); // nsactl, nsad, nsa-shim, nsa-worker
std::string library_folder(); // libnsa_ops.so and the GPU plug-ins

} // namespace nsa::test
