# Compiler cache, fast linker, warnings. All of them are optional, and a missing one is reported.
find_program(NSA_CCACHE ccache)
if(NSA_CCACHE)
  # Paths below the checkout count as relative, so all checkouts of the same text share the cache. ccache caches files
  # with a precompiled header only with these sloppiness settings.
  set(nsa_launcher env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${NSA_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER ${nsa_launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${nsa_launcher})
else()
  message(STATUS "ccache not found: rebuilds will be slower")
endif()
find_program(NSA_MOLD mold)
if(NSA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Every attempt records its builds (daemon/run_metrics/provenance.h). Not every compiler asks its linker for a build id.
add_link_options(LINKER:--build-id)

add_library(nsa_warnings INTERFACE)
target_compile_options(nsa_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-interference-size>)
if(NSA_WARNINGS_AS_ERRORS)
  target_compile_options(nsa_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

# Released binaries contain no paths of the build machine. In other builds the flag would only prevent ccache hits
# between checkouts.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>)
  # ccache (CCACHE_BASEDIR) writes these paths relative to the build folder, so a build without it does the same.
  file(RELATIVE_PATH nsa_source_from_build "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}")
  string(REGEX REPLACE "/$" "" nsa_source_from_build "${nsa_source_from_build}")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${nsa_source_from_build}=.>)
  # GCC names a system header by its shortest path. If .deps is a link, that path is outside the checkout.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-canonical-system-headers>)
  # Programs must also start with the libstdc++ of GCC 11.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-isystem ${CMAKE_SOURCE_DIR}/cmake/older_libstdc++>")
endif()

set(NSA_SANITIZE "" CACHE STRING "address, thread or empty")
# GCC documents that its flow warnings are unreliable in instrumented code.
if(NSA_SANITIZE)
  target_compile_options(nsa_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()
if(NSA_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize=vptr)
  add_link_options(-fsanitize=address,undefined)
elseif(NSA_SANITIZE STREQUAL "thread")
  # -Wno-tsan: the tool does not model fences (the progress page); every other word there is atomic.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  add_link_options(-fsanitize=thread)
endif()
