// A field whose texts are a closed list (choice.h), if another program version may know more of
// them. It holds the value, or the unknown text as received, to be shown and passed on. No I/O.
#pragma once

#include "common/base/choice.h"

#include <ostream>

namespace nsa {

// The default is the empty text, which means that the field is absent.
template <ChoiceEnum E> class ChoiceOrText {
public:
  ChoiceOrText() = default;
  ChoiceOrText(E value) : value_(value) {} // implicit, so that a value can be assigned
  explicit ChoiceOrText(std::string_view text) : value_(choice_from<E>(text)) {
    if (!value_) other_ = text;
  }

  std::optional<E> value() const { return value_; } // nullopt: not in the list
  std::string_view view() const { return value_ ? name_of(*value_) : std::string_view(other_); }
  std::string text() const { return std::string(view()); }
  bool empty() const { return view().empty(); }
  // Compares with values only, because text becomes a value where it is read.
  bool operator==(const ChoiceOrText&) const = default;

private:
  std::optional<E> value_;
  std::string other_; // empty if there is a value
};

template <ChoiceEnum E> std::ostream& operator<<(std::ostream& out, const ChoiceOrText<E>& choice) {
  return out << choice.view();
}

// The JSON form is the text. Any text is accepted. nlohmann finds these functions by the type's
// namespace.
template <class Json, ChoiceEnum E> void to_json(Json& json, const ChoiceOrText<E>& choice) {
  json = choice.text();
}
template <class Json, ChoiceEnum E> void from_json(const Json& json, ChoiceOrText<E>& choice) {
  choice = ChoiceOrText<E>(json.template get_ref<const std::string&>());
}

} // namespace nsa
