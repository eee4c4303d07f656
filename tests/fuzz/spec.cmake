nsa_fuzz(NAME fuzz_run_file SOURCES run_file_fuzz.cpp DEPS spec)
