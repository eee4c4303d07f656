# `cmake --install` and one CPack archive (bin/, lib/, share/) that runs unpacked on another x86-64 Linux
# with the same torch version. The small libraries travel in lib/; LibTorch does not: it is found beside
# the archive's bin/ as torch/ (a link to the torch folder of a Python environment; docs/install.md).
install(RUNTIME_DEPENDENCY_SET nsa_runtime_dependencies
  PRE_EXCLUDE_REGEXES "^lib(torch|c10|cuda|cudart|cupti|cublas|cublasLt|cudnn|nccl|nvidia)" "^libnsa_"
  POST_EXCLUDE_REGEXES "/ld-linux" "/lib(c|m|dl|rt|pthread|resolv|stdc\\+\\+|gcc_s|gomp)\\.so"
                       "/torch/lib/" "/nvidia/" "/libnsa_"
  LIBRARY DESTINATION lib)
install(DIRECTORY configs migrations DESTINATION share/nsad OPTIONAL)
install(DIRECTORY deploy DESTINATION share/nsad OPTIONAL)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME nsad)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_FILE_NAME "nsad-${PROJECT_VERSION}-linux-x86_64")
# Symbol tables stay: the evidence of a hang names functions by them. Release builds have nothing else to strip.
set(CPACK_STRIP_FILES OFF)
include(CPack)
