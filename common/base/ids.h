// Types and formats of ids, the same in every program.
//
// A run id has 5 characters of a 31-character alphabet without look-alikes; the first is a letter.
// It is short to type, and safe in paths, metric labels and SQL. Attempts of a run count from 1,
// ranks from 0.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace nsa {

using RunId = std::string;
using AttemptNumber = int32_t;
using Rank = int32_t;

inline constexpr std::string_view kRunIdAlphabet = "abcdefghjkmnpqrstuvwxyz23456789";
inline constexpr size_t kRunIdLength = 5;

inline bool is_run_id(std::string_view text) {
  if (text.size() != kRunIdLength || (text[0] >= '0' && text[0] <= '9')) return false;
  return text.find_first_not_of(kRunIdAlphabet) == std::string_view::npos;
}

template <class Generator> RunId make_run_id(Generator& random) {
  std::uniform_int_distribution<size_t> letter(0, 22), any(0, kRunIdAlphabet.size() - 1);
  RunId id;
  id.push_back(kRunIdAlphabet[letter(random)]);
  while (id.size() < kRunIdLength)
    id.push_back(kRunIdAlphabet[any(random)]);
  return id;
}

} // namespace nsa
