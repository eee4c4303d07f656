#include "worker/profile/kernel_parts.h"

#include <array>

namespace nsa::profile {

using ops::StepPart;

namespace {

struct Row {
  std::string_view kernel;    // its name, up to the template arguments or through the first type
  std::string_view arguments; // start of these, with enums in any spelling; may be empty
  StepPart part;
};

// The first matching row applies. KeyRange 0 is the window, 1 the compressed keys, 2 blocks. In a
// row without arguments the kernel serves all ranges.
constexpr auto kRows = std::to_array<Row>({
    {"pooling_kernel", "", StepPart::kCompression},
    {"pooling_backward_kernel", "", StepPart::kCompression},
    {"selection_kernel", "", StepPart::kSelection},
    {"given_indices_kernel", "", StepPart::kSelection},
    {"count_kernel(nsa::kernels::BlockListsParams", "", StepPart::kLists},
    {"chunk_offsets_kernel", "", StepPart::kLists},
    {"starts_kernel", "", StepPart::kLists},
    {"scatter_kernel", "", StepPart::kLists},
    {"segment_start_kernel", "", StepPart::kLists},
    {"tile_forward_kernel", "0", StepPart::kSliding},
    {"tile_forward_kernel", "1", StepPart::kCompressed},
    {"tile_forward_kernel", "2", StepPart::kSelected},
    {"range_backward_kernel", "0true", StepPart::kSliding},
    {"range_backward_kernel", "0false", StepPart::kSelected},
    {"range_backward_kernel", "1", StepPart::kCompressed},
    {"range_backward_kernel", "2", StepPart::kSelected},
    {"compressed_backward_kernel", "", StepPart::kCompressed},
    {"key_sizes_kernel", "", StepPart::kCompressed},
    {"key_bounds_kernel", "", StepPart::kCompressed},
    {"query_scales_kernel", "", StepPart::kCompressed},
    {"query_sums_kernel", "", StepPart::kCompressed},
    {"selected_forward_kernel", "", StepPart::kSelected},
    {"list_backward_kernel", "", StepPart::kSelected},
    {"tile_backward_kernel", "01", StepPart::kAttention}, // dQ of several branches in one pass
    {"tile_backward_kernel", "0", StepPart::kSliding},
    {"tile_backward_kernel", "1", StepPart::kCompressed},
    {"tile_backward_kernel", "2", StepPart::kSelected},
    {"merge_kernel", "", StepPart::kAttention},
    {"packed_merge_kernel", "", StepPart::kAttention},
    {"merge_query_gradient_kernel", "", StepPart::kAttention},
    {"backward_prepare_kernel", "", StepPart::kAttention},
    {"reduce_key_gradient_kernel", "", StepPart::kAttention},
    {"document_copy_kernel", "", StepPart::kAttention},
    {"list_attend_kernel", "", StepPart::kSelected},
    {"attend_kernel", "", StepPart::kAttention},
    {"query_gradient_kernel", "", StepPart::kAttention},
    {"key_gradient_kernel", "", StepPart::kAttention},
});

// Extracts digits, true and false: "<(nsa::kernels::KeyRange)1, false, Heads<6> >" gives "1false6".
struct Spelled {
  std::array<char, 32> text{};
  size_t size = 0;
  void add(std::string_view more) {
    for (const char c : more)
      if (size < text.size()) text[size++] = c;
  }
  std::string_view view() const { return {text.data(), size}; }
};
Spelled spelled(std::string_view arguments) {
  Spelled out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view rest = arguments.substr(i);
    const char before = i == 0 ? ' ' : arguments[i - 1];
    const bool starts = before == ' ' || before == '<' || before == ',' || before == ')';
    if (starts && rest.starts_with("true")) out.add("true");
    if (starts && rest.starts_with("false")) out.add("false");
    if (starts && rest[0] >= '0' && rest[0] <= '9') out.add(rest.substr(0, 1));
  }
  return out;
}

bool names(std::string_view kernel, std::string_view name, size_t& end) {
  for (size_t at = kernel.find(name); at != std::string_view::npos;
       at = kernel.find(name, at + 1)) {
    const char before = at == 0 ? ':' : kernel[at - 1];
    end = at + name.size();
    const char behind = end == kernel.size() ? '(' : kernel[end];
    const bool ends = behind == '<' || behind == '(' || name.find('(') != std::string_view::npos;
    if ((before == ':' || before == ' ') && ends) return true;
  }
  return false;
}

} // namespace

std::optional<StepPart> part_of_attention_kernel(std::string_view kernel) {
  if (kernel.find("nsa::kernels::") == std::string_view::npos) return std::nullopt;
  for (const Row& row : kRows) {
    size_t end = 0;
    if (!names(kernel, row.kernel, end)) continue;
    if (row.arguments.empty() || spelled(kernel.substr(end)).view().starts_with(row.arguments))
      return row.part;
  }
  return std::nullopt;
}

bool is_memset_kernel(std::string_view kernel) {
  return kernel.starts_with("memset") && kernel.find(':') == std::string_view::npos;
}

} // namespace nsa::profile
