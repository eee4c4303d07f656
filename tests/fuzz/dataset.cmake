nsa_fuzz(NAME fuzz_shard SOURCES shard_fuzz.cpp DEPS dataset)
nsa_fuzz(NAME fuzz_json_lines SOURCES json_lines_fuzz.cpp DEPS dataset)
nsa_fuzz(NAME fuzz_dataset_manifest SOURCES dataset_manifest_fuzz.cpp DEPS dataset)
