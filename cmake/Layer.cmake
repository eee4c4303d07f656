# Every library lists the libraries that it uses, and uses no others (docs/design/layers.md). A library that is declared
# later cannot be listed, so there are no circles. cmake/Rooms.cmake says which folders may use which. A violation of
# either is a configure error.
#
#   nsa_library(NAME spec SOURCES a.cpp DEPS base [INTERNAL Foo::foo ...] [TORCH] [JSON] [SEPARATE])
#   nsa_program(NAME nsad SOURCES main.cpp DEPS control ... [TORCH] [STATIC])
#   nsa_test(NAME spec_test SOURCES spec_test.cpp DEPS spec [LABELS unit] [TORCH] [SEPARATE] [TIMEOUT 60])
#
# DEPS are all our own libraries whose headers its files include (public). EXTERNAL are foreign targets that become
# public, INTERNAL are foreign targets that stay private to this library. JSON: most of its sources parse JSON's
# headers. SEPARATE: each source is compiled separately, because local functions of several sources have the same name,
# or because nvcc compiles them.
include(Rooms)

function(nsa_check_uses name)
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  nsa_room_of("${folder}" room)
  if(NOT room)
    message(FATAL_ERROR "${name} lies in ${folder}, which belongs to no room. Add one to cmake/Rooms.cmake.")
  endif()
  get_property(allowed GLOBAL PROPERTY NSA_ROOM_${room})
  foreach(dep ${ARGN})
    if(NOT TARGET nsa_${dep})
      message(FATAL_ERROR "${name} links '${dep}', which is not one of our libraries (or is declared later). "
                          "Foreign libraries go under EXTERNAL or INTERNAL.")
    endif()
    get_target_property(dep_folder nsa_${dep} NSA_FOLDER)
    set(is_allowed FALSE)
    foreach(other ${allowed})
      string(FIND "${dep_folder}/" "${other}/" at)
      if(at EQUAL 0)
        set(is_allowed TRUE)
      endif()
    endforeach()
    if(NOT is_allowed)
      message(FATAL_ERROR "${name} may not link ${dep}: room ${room} does not name ${dep_folder}. "
                          "Move the code, or change cmake/Rooms.cmake and say why.")
    endif()
  endforeach()
endfunction()

# Code that waits for disks, sockets and people gains little from the optimizer's second pass (preset dev).
set(NSA_CONTROL_PLANE_FLAGS "" CACHE STRING "Flags of the folders that compute little: cli, daemon, wire, spec, ...")
function(nsa_optimize target folder)
  if(folder MATCHES "^(cli|daemon|common/(wire|spec|net|tls|transfer|manifest|estimate))(/|$)" AND NSA_CONTROL_PLANE_FLAGS)
    target_compile_options(${target} PRIVATE ${NSA_CONTROL_PLANE_FLAGS})
  endif()
endfunction()

# Several sources of a library or a test are compiled as one, since most of the time is spent on their common headers.
# Names in anonymous namespaces must differ among them. Take most care with functions that take JSON. Nearly every type
# converts to JSON, so the compiler may silently call such a function instead of another one with the same name. The
# value 1 compiles each source separately, which finds a source that lacks an #include.
set(NSA_SOURCES_AT_ONCE 8 CACHE STRING "Sources of a library or a test that are compiled as one")
function(nsa_compile_together target)
  if(NSA_SOURCES_AT_ONCE GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${NSA_SOURCES_AT_ONCE})
    # A class of a source may contain types of its anonymous namespace. GCC mistakes the source for a header here.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# In names of a .cu file's anonymous namespace, nvcc includes the CRC of the file's absolute path. With the path within
# the checkout, kernels have the same names in every folder, and two builds have the same bytes.
function(nsa_name_kernels folder)
  foreach(source ${ARGN})
    if(source MATCHES "\\.cu$")
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS "-Xcudafe=--orig_src_path_name=${folder}/${source}")
    endif()
  endforeach()
endfunction()

# nvcc names its temporary files by process id, and these names reach the symbol tables of linked files. Then two builds
# would differ.
function(nsa_drop_temporary_names target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_link_options(${target} PRIVATE LINKER:--strip-all)
  endif()
endfunction()

function(nsa_library)
  cmake_parse_arguments(A "TORCH;SHARED;JSON;SEPARATE" "NAME" "SOURCES;DEPS;EXTERNAL;INTERNAL" ${ARGN})
  nsa_check_uses(${A_NAME} ${A_DEPS})
  set(scope PUBLIC)
  if(NOT A_SOURCES)
    add_library(nsa_${A_NAME} INTERFACE)
    set(scope INTERFACE)
  elseif(A_SHARED)
    add_library(nsa_${A_NAME} SHARED ${A_SOURCES})
    install(TARGETS nsa_${A_NAME} RUNTIME_DEPENDENCY_SET nsa_runtime_dependencies
            LIBRARY DESTINATION lib COMPONENT programs)
    set_property(GLOBAL APPEND PROPERTY NSA_PACKED nsa_${A_NAME})
  else()
    add_library(nsa_${A_NAME} STATIC ${A_SOURCES})
  endif()
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  nsa_name_kernels("${folder}" ${A_SOURCES})
  set_target_properties(nsa_${A_NAME} PROPERTIES NSA_FOLDER "${folder}")
  target_include_directories(nsa_${A_NAME} ${scope} "${CMAKE_SOURCE_DIR}")
  foreach(dep ${A_DEPS})
    target_link_libraries(nsa_${A_NAME} ${scope} nsa_${dep})
  endforeach()
  if(A_EXTERNAL)
    target_link_libraries(nsa_${A_NAME} ${scope} ${A_EXTERNAL})
  endif()
  if(A_SOURCES)
    target_link_libraries(nsa_${A_NAME} PRIVATE nsa_warnings ${A_INTERNAL})
    nsa_optimize(nsa_${A_NAME} "${folder}")
    if(NOT A_SEPARATE)
      nsa_compile_together(nsa_${A_NAME})
    endif()
  endif()
  if(A_TORCH)
    target_link_libraries(nsa_${A_NAME} ${scope} nsa_torch)
    nsa_use_precompiled_header(nsa_${A_NAME})
  elseif(A_JSON)
    nsa_use_precompiled_json(nsa_${A_NAME})
  endif()
endfunction()

function(nsa_program)
  cmake_parse_arguments(A "TORCH;STATIC" "NAME" "SOURCES;DEPS;INTERNAL" ${ARGN})
  nsa_check_uses(${A_NAME} ${A_DEPS})
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  add_executable(${A_NAME} ${A_SOURCES})
  target_include_directories(${A_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  foreach(dep ${A_DEPS})
    target_link_libraries(${A_NAME} PRIVATE nsa_${dep})
  endforeach()
  target_link_libraries(${A_NAME} PRIVATE nsa_warnings ${A_INTERNAL})
  if(A_TORCH)
    target_link_libraries(${A_NAME} PRIVATE nsa_torch)
    nsa_use_precompiled_header(${A_NAME})
  else()
    nsa_optimize(${A_NAME} "${folder}")
  endif()
  if(A_STATIC AND NOT NSA_SANITIZE)
    target_link_options(${A_NAME} PRIVATE -static LINKER:--gc-sections)
    # A static program has no run path to rewrite at installation.
    set_target_properties(${A_NAME} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  endif()
  # Benchmarks are installed, but packages for users do not contain them and do not need them built.
  if(folder MATCHES "^bench(/|$)")
    install(TARGETS ${A_NAME} RUNTIME_DEPENDENCY_SET nsa_bench_dependencies RUNTIME DESTINATION bin COMPONENT bench)
  else()
    install(TARGETS ${A_NAME} RUNTIME_DEPENDENCY_SET nsa_runtime_dependencies
            RUNTIME DESTINATION bin COMPONENT programs)
    set_property(GLOBAL APPEND PROPERTY NSA_PACKED ${A_NAME})
  endif()
endfunction()

function(nsa_test)
  cmake_parse_arguments(A "TORCH;SEPARATE" "NAME;TIMEOUT" "SOURCES;DEPS;INTERNAL;LABELS;PROGRAMS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 600) # what never ends; the slowest takes a minute on two cores, and machines differ
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  add_executable(${A_NAME} ${A_SOURCES})
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${A_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  foreach(dep ${A_DEPS})
    target_link_libraries(${A_NAME} PRIVATE nsa_${dep})
  endforeach()
  target_link_libraries(${A_NAME} PRIVATE nsa_warnings ${A_INTERNAL} nsa_test_paths GTest::gtest GTest::gmock GTest::gtest_main)
  if(A_TORCH)
    target_link_libraries(${A_NAME} PRIVATE nsa_torch)
    nsa_use_precompiled_header(${A_NAME} TEST)
    list(APPEND A_LABELS torch)
  else()
    target_compile_options(${A_NAME} PRIVATE ${NSA_CONTROL_PLANE_FLAGS})
    nsa_use_precompiled_test(${A_NAME})
  endif()
  if(NOT A_SEPARATE)
    nsa_compile_together(${A_NAME})
  endif()
  if(A_PROGRAMS)
    add_dependencies(${A_NAME} ${A_PROGRAMS})
  endif()
  # One ctest entry for each program: it starts only once, and the summary script counts its cases.
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} --gtest_brief=0)
  # A test that starts a daemon gives its socket. A test that forgets this must not reach a daemon of this machine.
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT}
                       ENVIRONMENT "NSA_SOCKET=${CMAKE_BINARY_DIR}/tests/no-daemon.sock")
  if(A_TORCH)
    # Threads of OpenMP sleep while they wait for each other. Else they take the cores of the tests beside them.
    set_property(TEST ${A_NAME} APPEND PROPERTY ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
    nsa_weigh(4 20 ${A_NAME})
  else()
    nsa_weigh(2 0 ${A_NAME})
  endif()
endfunction()
