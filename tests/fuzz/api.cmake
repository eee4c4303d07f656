nsa_fuzz(NAME fuzz_route SOURCES route_fuzz.cpp DEPS api)
