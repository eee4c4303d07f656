#include "nsa_model/model/parameters.h"

#include "nsa_model/model/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>

namespace nsa::model {

namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that mixes well.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t name_hash(const std::string& name) { // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name)
    hash = (hash ^ uint8_t(c)) * 0x100000001b3ull;
  return hash;
}

// Pairs of normal values that each additional thread draws at least. They take one or two
// milliseconds.
constexpr int64_t kPairsAThread = 1 << 15;

// Draws values 2 begin .. 2 end of `count` (Box and Muller 1958). It makes a pair of normals from a
// pair of uniforms and never evaluates log(0).
void draw_pairs(float* values, int64_t count, int64_t begin, int64_t end, uint64_t key,
                double deviation) {
  for (int64_t pair = begin; pair < end; ++pair) {
    const uint64_t bits = mix(key + uint64_t(pair) * 0x9e3779b97f4a7c15ull);
    const double u = (double(bits >> 32) + 1.0) * 0x1p-32;
    const double angle = double(bits & 0xffffffffu) * 0x1p-32 * 2.0 * std::numbers::pi;
    const double radius = deviation * std::sqrt(-2.0 * std::log(u));
    values[2 * pair] = float(radius * std::cos(angle));
    if (2 * pair + 1 < count) values[2 * pair + 1] = float(radius * std::sin(angle));
  }
}

class SpecList {
public:
  explicit SpecList(const ModelConfig& config) : config_(config) {}

  void gain(const std::string& name, int64_t width) {
    all.push_back({name + ".weight", {width}, 0.0, 1.0, false});
  }
  void matrix(const std::string& name, int64_t out, int64_t in, double deviation) {
    all.push_back({name + ".weight", {out, in}, deviation, 0.0, true});
  }
  void attention(const std::string& name);

  double deviation() const { return 0.02 * std::sqrt(768.0 / double(config_.dimension)); }
  // Projections that write to the residual stream are scaled by the number of additions to it, as
  // in GPT-2.
  double residual_deviation() const {
    return deviation() / std::sqrt(2.0 * double(config_.layers));
  }

  std::vector<ParameterSpec> all;

private:
  const ModelConfig& config_;
};

void SpecList::attention(const std::string& name) {
  const ModelConfig& c = config_;
  const int64_t query = c.heads * c.head_dimension, kv = c.kv_groups * c.head_dimension;
  // Flat buffers hold parameters in reverse order (worker/rules/bucket_plan.h). So the weights of
  // the joined product are one matrix there.
  std::vector<std::string> projections = projection_rows(c).names;
  std::reverse(projections.begin(), projections.end());
  for (const std::string& projection : projections)
    matrix(name + "." + projection, projection == "w_q" ? query : kv, c.dimension, deviation());
  if (c.attention == Attention::kNsa) {
    if (c.nsa.compressed && c.nsa.compression == Compression::kMlp) {
      const int64_t block = c.nsa.compression_block * c.head_dimension,
                    width = compression_hidden(c);
      for (const std::string phi : {".phi_k", ".phi_v"}) {
        all.push_back({name + phi + ".position",
                       {c.nsa.compression_block, c.head_dimension},
                       0.02,
                       0.0,
                       false});
        // Fan-in scaling keeps the size of a key through both layers. SiLU roughly halves the root
        // mean square of its input, and the factor 2 restores it.
        matrix(name + phi + ".fc1", width, block, 1.0 / std::sqrt(double(block)));
        matrix(name + phi + ".fc2", c.head_dimension, width, 2.0 / std::sqrt(double(width)));
      }
    }
    const int64_t hidden = gate_hidden(c), branches = branch_count(c.nsa);
    if (c.nsa.gate == Gate::kHeadSigmoid) {
      matrix(name + ".gate.fc1", hidden, c.dimension, 1.0 / std::sqrt(double(c.dimension)));
      matrix(name + ".gate.fc2", c.heads * branches, hidden, 0.1 / std::sqrt(double(hidden)));
    } else if (branches > 1) {
      // A second layer with small weights starts every gate near 1 / branches. Its gradient lets
      // the weights grow.
      matrix(name + ".gate.fc1", hidden, c.head_dimension,
             1.0 / std::sqrt(double(c.head_dimension)));
      matrix(name + ".gate.fc2", branches, hidden, 0.1 / std::sqrt(double(hidden)));
    }
  }
  matrix(name + ".w_out", c.dimension, query, residual_deviation());
}

} // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  SpecList list(config);
  list.matrix("embedding", config.vocabulary, config.dimension, 0.02);
  const int64_t width = config.mlp_ratio * config.dimension;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer);
    list.gain(block + ".attention_norm", config.dimension);
    list.attention(block + ".attention");
    list.gain(block + ".mlp_norm", config.dimension);
    list.matrix(block + ".mlp.fc1", width, config.dimension, list.deviation());
    list.matrix(block + ".mlp.fc2", config.dimension, width, list.residual_deviation());
  }
  list.gain("final_norm", config.dimension);
  return std::move(list.all);
}

at::Tensor initial_values(const ParameterSpec& spec, uint64_t seed, int threads) {
  at::Tensor values = at::empty(spec.shape, at::TensorOptions().dtype(at::kFloat));
  if (spec.deviation == 0) return values.fill_(spec.value);
  const uint64_t key = mix(seed ^ mix(name_hash(spec.name)));
  const int64_t pairs = (values.numel() + 1) / 2;
  const int64_t at_most = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(pairs / kPairsAThread, 1, at_most);
  float* const data = values.mutable_data_ptr<float>();
  const auto draw_part = [&](int64_t part) {
    draw_pairs(data, values.numel(), pairs * part / parts, pairs * (part + 1) / parts, key,
               spec.deviation);
  };
  std::vector<std::jthread> others;
  for (int64_t part = 1; part < parts; ++part)
    others.emplace_back(draw_part, part);
  draw_part(0);
  others.clear(); // joins the threads
  return values;
}

} // namespace nsa::model
