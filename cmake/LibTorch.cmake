# LibTorch from the pip wheel (docs/adr): imported targets made by hand, because the wheel's own
# find_package(Torch) wants nvcc and the CUDA wheels, and rewrites CUDA flags.
#
# nsa_torch: headers, libtorch_cpu and libc10, with the wheel's folder as run path. GPU libraries are
# never linked: they are dlopened by the worker's plug-ins (docs/design/architecture.md).
set(NSA_TORCH_FOUND OFF)
if(NSA_WITH_TORCH STREQUAL "OFF")
  return()
endif()
find_path(NSA_TORCH_ROOT NAMES torch/include/ATen/ATen.h
          HINTS "${NSA_TORCH_DIR}" "$ENV{NSA_TORCH_DIR}" "${CMAKE_SOURCE_DIR}/.deps/torch" NO_DEFAULT_PATH)
if(NOT NSA_TORCH_ROOT)
  if(NSA_WITH_TORCH STREQUAL "ON")
    message(FATAL_ERROR "LibTorch not found. Run 'tools/setup' (puts the torch wheel into .deps/torch), or pass "
                        "-DNSA_TORCH_DIR=<folder that holds torch/>.")
  endif()
  message(STATUS "LibTorch not found: the worker and the model are not built (tools/setup fetches it)")
  return()
endif()
set(NSA_TORCH_LIB "${NSA_TORCH_ROOT}/torch/lib")
file(READ "${NSA_TORCH_ROOT}/torch/include/torch/headeronly/version.h" nsa_torch_version_h)
string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _ "${nsa_torch_version_h}")
set(nsa_torch_major "${CMAKE_MATCH_1}")
string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${nsa_torch_version_h}")
set(NSA_TORCH_VERSION "${nsa_torch_major}.${CMAKE_MATCH_1}")
if(NOT NSA_TORCH_VERSION STREQUAL "2.11")
  message(FATAL_ERROR "LibTorch ${NSA_TORCH_VERSION} in ${NSA_TORCH_ROOT}: this code is written for 2.11 "
                      "(private operator signatures change between minor versions).")
endif()
message(STATUS "LibTorch ${NSA_TORCH_VERSION}: ${NSA_TORCH_ROOT}")
set(NSA_TORCH_FOUND ON)
if(CMAKE_BUILD_WITH_INSTALL_RPATH)
  file(CREATE_LINK "${NSA_TORCH_ROOT}/torch" "${CMAKE_BINARY_DIR}/torch" SYMBOLIC)
endif()

add_library(nsa_torch INTERFACE)
target_include_directories(nsa_torch SYSTEM INTERFACE
  "${NSA_TORCH_ROOT}/torch/include" "${NSA_TORCH_ROOT}/torch/include/torch/csrc/api/include")
target_link_libraries(nsa_torch INTERFACE "${NSA_TORCH_LIB}/libtorch_cpu.so" "${NSA_TORCH_LIB}/libc10.so")
# libtorch_cpu uses symbols of the CUDA runtime, which it finds by its own run path at load time.
target_link_options(nsa_torch INTERFACE -Wl,--allow-shlib-undefined)
