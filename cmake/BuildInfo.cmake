# Version and git commit of the programs, as one generated source that only changes when they do.
find_package(Git QUIET)
set(NSA_GIT_COMMIT "unknown")
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C "${CMAKE_SOURCE_DIR}" describe --always --dirty --abbrev=12
                  OUTPUT_VARIABLE NSA_GIT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT NSA_GIT_COMMIT)
    set(NSA_GIT_COMMIT "unknown")
  endif()
endif()
