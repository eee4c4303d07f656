# Precompiled headers for sources that include LibTorch, whose headers took most of the compilation time. A file that
# took 24 s of processor time takes 14 s, and one that took 9 s takes 6 s. Libraries and programs share one header,
# tests share another, and each is compiled once. Libraries whose sources mostly parse JSON's headers share a third one:
# 4.3 s instead of 5.5 s for each file. Other sources would lose 0.2 s each and have none. Tests without
# LibTorch share a fourth one, with GoogleTest and JSON.
#
#   nsa_use_precompiled_header(TARGET [TEST])
#   nsa_use_precompiled_json(TARGET)
#   nsa_use_precompiled_test(TARGET)
#
# Every source still includes what it uses; `-DNSA_PRECOMPILED_HEADERS=OFF -DNSA_SOURCES_AT_ONCE=1` finds a source that
# does not.
option(NSA_PRECOMPILED_HEADERS "Share parsed headers of LibTorch, JSON and GoogleTest between sources" ON)

# GCC accepts a precompiled header only with the flags of its compilation. Programs would get -fPIE where libraries get
# -fPIC.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)

# The first target that needs it makes it, so a build without LibTorch makes none of LibTorch. OPTIONS are those of all
# targets that share it.
function(nsa_make_precompiled_header name)
  cmake_parse_arguments(A "" "" "OPTIONS;LINK;FOLDERS;HEADERS" ${ARGN})
  set(source "${CMAKE_BINARY_DIR}/precompiled/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// The precompiled header needs a source of its own.\n")
  add_library(${name} OBJECT "${source}")
  target_compile_options(${name} PRIVATE ${A_OPTIONS})
  target_link_libraries(${name} PRIVATE ${A_LINK})
  target_include_directories(${name} PRIVATE ${A_FOLDERS})
  target_precompile_headers(${name} PRIVATE ${A_HEADERS})
endfunction()

function(nsa_use_precompiled_header target)
  cmake_parse_arguments(A "TEST" "" "" ${ARGN})
  if(NOT NSA_PRECOMPILED_HEADERS)
    return()
  endif()
  set(name nsa_precompiled_torch)
  set(link nsa_torch)
  set(headers <algorithm> <cstdint> <functional> <map> <memory> <optional> <string> <vector>
      <ATen/ATen.h> <torch/csrc/autograd/custom_function.h> <torch/library.h>)
  if(A_TEST)
    string(APPEND name _test)
    list(APPEND link GTest::gmock)
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  if(NOT TARGET ${name})
    nsa_make_precompiled_header(${name} LINK ${link} HEADERS ${headers})
  endif()
  nsa_share_precompiled_header(${target} ${name})
endfunction()

# With JSON, and the headers and libraries given under HEADERS and LINK.
function(nsa_use_precompiled target name)
  if(NOT NSA_PRECOMPILED_HEADERS)
    return()
  endif()
  cmake_parse_arguments(A "" "" "LINK;HEADERS" ${ARGN})
  # Never JSON alone: the range checks of integers must be known before anything reads one.
  set(headers <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <set> <span>
      <string> <string_view> <utility> <variant> <vector> <tl/expected.hpp> "${CMAKE_SOURCE_DIR}/common/base/json.h")
  if(NOT TARGET ${name})
    nsa_make_precompiled_header(${name} OPTIONS ${NSA_CONTROL_PLANE_FLAGS} LINK ${A_LINK} FOLDERS "${CMAKE_SOURCE_DIR}"
                                HEADERS ${headers} ${A_HEADERS})
  endif()
  nsa_share_precompiled_header(${target} ${name})
endfunction()

function(nsa_use_precompiled_json target)
  nsa_use_precompiled(${target} nsa_precompiled_json)
endfunction()

function(nsa_use_precompiled_test target)
  nsa_use_precompiled(${target} nsa_precompiled_test LINK GTest::gmock HEADERS <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

function(nsa_share_precompiled_header target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  # With a precompiled header, GCC 12 does not know which parts belong to system headers, and warns inside std::string.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
endfunction()
