# `cmake --install` writes bin/, lib/ and share/, which tools/make-archive, make-wheel and make-debian-package pack.
# They run on other x86-64 Linux machines with the same torch version. lib/ contains the small libraries, but not
# LibTorch. Programs find it beside the archive's bin/ as torch/, a link to the torch folder of a Python environment
# (docs/install.md).
foreach(pair "nsa_runtime_dependencies|programs" "nsa_bench_dependencies|bench")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 dependencies)
  list(GET pair 1 component)
  install(RUNTIME_DEPENDENCY_SET ${dependencies}
    PRE_EXCLUDE_REGEXES "^lib(torch|c10|cuda|cudart|cupti|cublas|cublasLt|cudnn|nccl|nvidia)" "^libnsa_"
    POST_EXCLUDE_REGEXES "/ld-linux" "/lib(c|m|dl|rt|pthread|resolv|stdc\\+\\+|gcc_s|gomp)\\.so"
                         "/torch/lib/" "/nvidia/" "/libnsa_"
    LIBRARY DESTINATION lib COMPONENT ${component})
endforeach()
install(DIRECTORY configs migrations deploy DESTINATION share/nsad COMPONENT programs)
# The text of `nsactl demo` (tools/fetch-text wordnet), with its licence.
install(FILES .deps/text/wordnet.txt.gz .deps/text/wordnet.copyright DESTINATION share/nsad/demo
        COMPONENT programs OPTIONAL)

# The contents of packages: `cmake --build BUILD --target packed`, then `cmake --install BUILD --component programs`.
get_property(packed GLOBAL PROPERTY NSA_PACKED)
add_custom_target(packed DEPENDS ${packed})
