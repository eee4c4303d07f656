# Writes build_info.cpp: version and git commit of the programs. A script of every build (`cmake -P`),
# since a build follows more commits than a configuration; its source only changes when they do.
#   SOURCE_FOLDER, TEMPLATE, OUTPUT, PROJECT_VERSION, COMPILER
find_package(Git QUIET)
set(NSA_GIT_COMMIT "")
if(GIT_FOUND)
  # No optional locks, because another git may use the index during a build.
  execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks -C "${SOURCE_FOLDER}" describe
                          --always --dirty --abbrev=12
                  OUTPUT_VARIABLE NSA_GIT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT NSA_GIT_COMMIT)
  set(NSA_GIT_COMMIT "unknown")
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
