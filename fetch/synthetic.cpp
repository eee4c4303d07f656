#include "fetch/synthetic.h"

#include "common/base/text.h"

#include <array>
#include <charconv>

namespace nsa::fetch {
namespace {

constexpr int64_t kLeastLength = 128; // room for a needle, its question and some hay
constexpr int64_t kMostLength = int64_t{1} << 28;
constexpr int64_t kMostDocuments = int64_t{1} << 40;

// SplitMix64 (Steele, Lea and Flood 2014), seeded for each document.
class Dice {
public:
  Dice(const Synthetic& set, int64_t number)
      : state_(set.seed * 0xD1342543DE82EF95ull + static_cast<uint64_t>(set.kind) +
               static_cast<uint64_t>(number) * 0xBF58476D1CE4E5B9ull) {}
  // Returns a number in [0, below).
  size_t roll(size_t below) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return static_cast<size_t>((z ^ z >> 31) % below);
  }
  char letter() { return static_cast<char>('a' + roll(26)); }

private:
  uint64_t state_;
};

std::string copy(Dice& dice, size_t length) {
  std::string text;
  for (size_t i = 0; i < (length - 1) / 2; ++i)
    text.push_back(dice.letter());
  return text + "|" + text;
}

std::string induction(Dice& dice, size_t length) {
  std::array<char, 26> value{};
  for (char& v : value)
    v = dice.letter();
  std::string text;
  while (text.size() + 1 < length) {
    const char key = dice.letter();
    text.push_back(key);
    text.push_back(value[static_cast<size_t>(key - 'a')]);
  }
  return text;
}

constexpr std::array<std::string_view, 24> kHay = {
    "the",  "river", "runs",  "under", "old",   "bridges", "while", "people",
    "walk", "home",  "from",  "their", "work",  "and",     "talk",  "about",
    "what", "they",  "heard", "in",    "small", "shops",   "near",  "trees"};

std::string needle(Dice& dice, size_t length) {
  std::string name, code;
  for (int i = 0; i < 5; ++i)
    name.push_back(dice.letter());
  for (int i = 0; i < 6; ++i)
    code.push_back(static_cast<char>('0' + dice.roll(10)));
  const std::string told = "The code of " + name + " is " + code + ". ";
  const std::string asked = "What is the code of " + name + "? It is " + code + ".";
  const size_t hay = length - told.size() - asked.size();
  // The sentence is placed at the first gap after this depth.
  const size_t depth = dice.roll(hay + 1);
  std::string text;
  bool placed = false;
  while (true) {
    if (!placed && text.size() >= depth) {
      text += told;
      placed = true;
    }
    std::string word(kHay[dice.roll(kHay.size())]);
    word.push_back(' ');
    const size_t room = hay + (placed ? told.size() : 0) - text.size();
    if (word.size() <= room) {
      text += word;
      continue;
    }
    text.append(room, '.'); // makes the length exact
    break;
  }
  if (!placed) text += told;
  return text + asked;
}

} // namespace

std::string Synthetic::name() const {
  return std::string(kSyntheticPrefix) + text_of(kind) + ",length=" + std::to_string(length) +
         ",documents=" + std::to_string(documents) + ",seed=" + std::to_string(seed);
}

Result<Synthetic> parse_synthetic(std::string_view source) {
  const char* const form = "write it as synthetic:needle,length=4096,documents=1000,seed=1; kinds "
                           "are copy, induction and needle";
  auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, "'" + std::string(source) + "': " + what, form);
  };
  const auto parts = split(source.substr(kSyntheticPrefix.size()), ',');
  Synthetic set;
  const auto kind = choice_from<Synthetic::Kind>(parts[0]);
  if (!kind) return wrong("there is no kind '" + parts[0] + "'");
  set.kind = *kind;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string key = parts[i].substr(0, equals);
    const std::string text = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < 0)
      return wrong("'" + parts[i] + "' is no key with a number");
    if (key == "length")
      set.length = value;
    else if (key == "documents")
      set.documents = value;
    else if (key == "seed")
      set.seed = static_cast<uint64_t>(value);
    else
      return wrong("there is no key '" + key + "'");
  }
  if (set.length < kLeastLength || set.length > kMostLength)
    return wrong("the length must lie between " + std::to_string(kLeastLength) + " and " +
                 std::to_string(kMostLength));
  if (set.documents < 1 || set.documents > kMostDocuments)
    return wrong("the number of documents must lie between 1 and " +
                 std::to_string(kMostDocuments));
  return set;
}

std::string make_document(const Synthetic& set, int64_t number) {
  Dice dice(set, number);
  const auto length = static_cast<size_t>(set.length);
  switch (set.kind) {
  case Synthetic::Kind::kCopy:
    return copy(dice, length);
  case Synthetic::Kind::kInduction:
    return induction(dice, length);
  case Synthetic::Kind::kNeedle:
    break;
  }
  return needle(dice, length);
}

} // namespace nsa::fetch
