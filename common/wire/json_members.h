// JSON of plain structs, member by member. NSA_DECLARE_JSON is beside the struct in the header,
// NSA_DEFINE_JSON in the .cpp of its family. nlohmann's macro would define these functions inline,
// and every file that includes the header would compile them again.
//
// A missing member keeps its default, so members can be added.
#pragma once

#include "common/base/json.h"

#define NSA_DECLARE_JSON(Type)                                                                     \
  void to_json(nlohmann::json& json, const Type& value);                                           \
  void from_json(const nlohmann::json& json, Type& value)

// nlohmann's member macros need these names.
#define NSA_DEFINE_JSON(Type, ...)                                                                 \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {                     \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))                       \
  }                                                                                                \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) {                   \
    const Type nlohmann_json_default_obj{};                                                        \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM_WITH_DEFAULT, __VA_ARGS__))        \
  }
