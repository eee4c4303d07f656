// Encodes TensorBoard's event files: TFRecord framing around protobuf messages (the
// tensorflow.Event of tensorflow/core/util/event.proto). It does no I/O. It has only what training
// writes: scalars, histograms, a text, hyperparameters, and the mark at which a restarted run
// continues.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace nsa::telemetry {

// CRC-32C (Castagnoli; RFC 3720 appendix B.4).
uint32_t crc32c(std::string_view data);

// Frames a TFRecord: u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data.
std::string frame_record(std::string_view data);

using Scalar = std::pair<std::string, double>; // tag, value; stored as float

// Events, with wall_time in seconds since 1970. Each result is the data of one record.
std::string encode_file_version(double wall_time); // must be the first record of a file
std::string encode_scalars(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
std::string encode_text(double wall_time, int64_t step, std::string_view tag,
                        std::string_view text); // shown as Markdown
// The distribution of values between 0 and 1, in buckets of equal width.
std::string encode_histogram(double wall_time, int64_t step, std::string_view tag,
                             const std::vector<double>& values);
using Parameter = std::pair<std::string, std::variant<double, bool, std::string>>;
// Hyperparameters for the HPARAMS tab, written once a run.
std::string encode_parameters(double wall_time, const std::vector<Parameter>& parameters);
// SessionLog START: readers drop everything at or after `first_step` from earlier files.
std::string encode_session_start(double wall_time, int64_t first_step);

} // namespace nsa::telemetry
