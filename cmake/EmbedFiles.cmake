# Text files inside a program: nsa_embed_files(OUT variable NAMESPACE nsa::store SYMBOL kMigrations FILES a.sql b.sql)
# writes a source file with `const std::vector<nsa::EmbeddedFile>& SYMBOL()` giving name and text, in
# the order of FILES. The files are read when configuring; changing one configures again.
function(nsa_embed_files)
  cmake_parse_arguments(A "" "OUT;NAMESPACE;SYMBOL" "FILES" ${ARGN})
  set(body "")
  foreach(file ${A_FILES})
    get_filename_component(name "${file}" NAME)
    file(READ "${file}" text)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    string(APPEND body "      {\"${name}\", R\"nsa_embed(${text})nsa_embed\"},\n")
  endforeach()
  set(target "${CMAKE_CURRENT_BINARY_DIR}/${A_SYMBOL}.embedded.cpp")
  file(CONFIGURE OUTPUT "${target}" @ONLY CONTENT [=[
#include "common/base/embedded_file.h"
namespace @A_NAMESPACE@ {
const std::vector<nsa::EmbeddedFile>& @A_SYMBOL@() {
  static const std::vector<nsa::EmbeddedFile> files = {
@body@  };
  return files;
}
} // namespace @A_NAMESPACE@
]=])
  set(${A_OUT} "${target}" PARENT_SCOPE)
endfunction()
