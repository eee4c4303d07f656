// Memory of a rank's process, as members of the structs that have it: a rank's report, and the view
// for users. The names are those of a record's metrics (RankStep). Pure values.
#pragma once

#include <cstdint>

namespace nsa::control {

template <class T> struct MemoryFigure {
  const char* name;
  uint64_t T::* bytes;
};
template <class T>
inline constexpr MemoryFigure<T> kMemoryFigures[] = {{"resident_bytes", &T::resident_bytes},
                                                     {"allocated_bytes", &T::allocated_bytes},
                                                     {"reserved_bytes", &T::reserved_bytes},
                                                     {"peak_bytes", &T::peak_bytes}};

} // namespace nsa::control
