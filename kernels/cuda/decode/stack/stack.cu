// All layers of a decode step of a few rows as one kernel, which stays on the device from the first
// layer to the last. With few rows a step is a chain of small products, each of which needs all of
// the one before, so that what counts is how soon a block knows what the others have found. Hence
// - one warp of each block does nothing but bring weights, in the order of their use and as far
//   ahead as a ring in shared memory allows, across products and layers: only those of the memories
//   that a token chooses have to wait for the router, and the matrices go to registers in the same
//   moment;
// - values pass between blocks in words that say which layer they are of: nobody waits at a barrier
//   of the grid (Word);
// - the code is small: what does not fit the instruction cache is fetched anew in every layer;
// - nothing is spilled from registers: beside so much shared memory the cache is small, and a value
//   may come back from L2 (Anew).
//
// Phases of a layer:
//   kKnown   norm, router, projections of q, the gate and the memory of all tokens, while one warp
//            finds out which memories are chosen
//   kChosen  projections of those, convolutions; the delta rule, two rows of a matrix to a warp
//   kEmit    mix, gated norm, hidden += out(..)
//   kWiden   norm, gate and up, silu(gate) * up
//   kNarrow  hidden += down(..)
// and behind the last layer norm and head. Every block computes norms, router and mix for itself.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/common/alignment.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/decode/stack/stack.h"

namespace mneme::cuda::decode::stack {
namespace {

bool IsBf16(std::span<const PackedMatrix> matrices, int out_features, int in_features) {
  return std::all_of(matrices.begin(), matrices.end(), [&](const PackedMatrix& m) {
    return m.dtype == DType::kBF16 && m.out_features == out_features &&
           m.in_features == in_features && IsAligned(m);
  });
}
bool IsBf16(const PackedMatrix& matrix, int out_features, int in_features) {
  return IsBf16(std::span(&matrix, 1), out_features, in_features);
}

// The parameters of all layers like this one.
Params MakeParams(const DecodeLayer& layer) {
  const DeltaMixer& mixer = layer.mixer;
  const GatedFeedForward& mlp = layer.feed_forward;
  Params p = {};
  p.model_dim = mixer.q_proj.in_features;
  p.mlp_dim = mlp.gate.out_features;
  p.heads = mixer.heads;
  p.value_heads = mixer.value_heads;
  p.value_dim = mixer.value_dim;
  p.conv_width = static_cast<int>(mixer.q_conv.shape[1]);
  p.memories = mixer.memories;
  p.top_k = mixer.memories > 0 ? mixer.top_k : 0;
  p.columns = p.top_k + (mixer.shared ? 1 : 0);
  p.per_memory = mixer.k_proj.size() > 1;
  p.shared = mixer.shared;
  p.gated = mixer.g_proj.data != nullptr;
  p.round_logits = mixer.round_logits == DType::kBF16;
  p.rounded_windows = mixer.k_window.dtype == DType::kBF16;
  p.norm_eps = mixer.norm_eps;
  p.out_norm_eps = mixer.out_norm_eps;
  p.mlp_norm_eps = mlp.norm_eps;
  p.beta_scale = mixer.beta_scale;
  p.norms = mixer.norms;
  p.capacity = mixer.pending.capacity;
  p.phase = Field(mixer.pending.phase);
  p.widest = std::max({p.model_dim, p.mlp_dim, p.value_heads * p.value_dim});
  return p;
}

// Whether a layer is as the kernel wants it.
bool Supports(const DecodeLayer& layer, const Params& p) {
  const DeltaMixer& mixer = layer.mixer;
  const GatedFeedForward& mlp = layer.feed_forward;
  const int keys = p.heads * mixer.key_dim, values = p.value_heads * p.value_dim;
  const std::array windows = {&mixer.q_window, &mixer.k_window, &mixer.v_window};
  const size_t matrices = p.per_memory ? p.memories + (p.shared ? 1 : 0) : 1;
  // One for all layers, as PendingWrites has it.
  const auto has_phase = [&p](const PendingWrites& pending) {
    CHECK(pending.phase.base != nullptr) << "pending writes without a phase";
    return Field(pending.phase).base == p.phase.base;
  };
  const auto per_memory = [&](std::span<const PackedMatrix> group, int outputs) {
    return group.size() == matrices && IsBf16(group, outputs, p.model_dim);
  };
  return std::all_of(windows.begin(), windows.end(),
                     [&](const StateView* window) {
                       return (window->dtype == DType::kBF16) == p.rounded_windows;
                     }) &&
         IsAligned(mixer.state) &&
         (p.capacity == 0 || (IsAligned(mixer.pending.keys) && has_phase(mixer.pending))) &&
         (p.memories == 0 || IsBf16(mixer.router, p.memories, p.model_dim)) &&
         IsBf16(mixer.q_proj, keys, p.model_dim) &&
         (!p.gated || IsBf16(mixer.g_proj, values, p.model_dim)) &&
         per_memory(mixer.k_proj, keys) && per_memory(mixer.v_proj, values) &&
         per_memory(mixer.a_proj, p.value_heads) && per_memory(mixer.b_proj, p.value_heads) &&
         IsBf16(mixer.out_proj, p.model_dim, values) && IsBf16(mlp.gate, p.mlp_dim, p.model_dim) &&
         IsBf16(mlp.up, p.mlp_dim, p.model_dim) && IsBf16(mlp.down, p.model_dim, p.mlp_dim);
}

int64_t SharedBytesOf(int rows, int64_t widest) {
  return rows == 1 ? SharedBytes<1>(widest) : SharedBytes<kMaxRows>(widest);
}

// Shapes that the kernel takes.
bool Supports(const Device& device, const Params& p, int key_dim) {
  const int keys = p.heads * key_dim, values = p.value_heads * p.value_dim;
  const int blocks = Blocks(device, p);
  const auto per_block = [&](int outputs_in_units) {
    return (outputs_in_units + blocks - 1) / blocks;
  };
  const auto units = [](int outputs) { return (outputs + kUnitRows - 1) / kUnitRows; };
  const auto stages = [](int features) { return (features + kStageFeatures - 1) / kStageFeatures; };
  const int of_memory = units(keys) + units(values) + 2 * units(p.value_heads);
  const bool known_memory = p.shared || !p.per_memory;
  const int known = units(keys) + (p.gated ? units(values) : 0) + (known_memory ? of_memory : 0);
  const int chosen =
      p.per_memory ? std::min(p.memories, p.rows * p.top_k) * per_block(of_memory) : 0;
  const int most = std::max({(per_block(known) + chosen) * stages(p.model_dim),
                             2 * per_block(units(p.mlp_dim)) * stages(p.model_dim),
                             per_block(units(p.model_dim)) * stages(std::max(values, p.mlp_dim))});
  // Outputs of projections, a thread each, of as many rows as the kernel is made for.
  const int all = p.per_memory ? per_block(units(keys)) : per_block(known);
  const int rest = per_block(known) + chosen - all;
  const int tasks = (all * p.columns + rest) * kUnitRows * p.rows;
  return p.rows >= 1 && p.rows <= kMaxRows && per_block(units(p.model_dim)) <= kMaxOwnUnits &&
         (key_dim == 128 || key_dim == 256) && p.value_dim % 64 == 0 &&
         values <= 64 * kMaxHeadParts && p.model_dim % kPartFeatures == 0 &&
         p.mlp_dim % kPartFeatures == 0 && values % kPartFeatures == 0 &&
         p.conv_width <= kMaxHistory + 1 && p.memories < kMaxMemories && most <= kMaxStages &&
         tasks <= kMaxTasks * p.rows && p.rows * p.columns * p.value_heads <= kMaxItems * blocks &&
         SharedBytesOf(p.rows, p.widest) <=
             static_cast<int64_t>(device.properties().sharedMemPerBlockOptin);
}

// Whether the kernel can go on to the logits.
bool Supports(const DecodeHead& head, const Params& p) {
  const int stages = (p.model_dim + kStageFeatures - 1) / kStageFeatures;
  return stages <= kHeadStages && IsBf16(head.head, head.head.out_features, p.model_dim);
}

Layer MakeLayer(const DecodeLayer& args) {
  const DeltaMixer& mixer = args.mixer;
  const GatedFeedForward& mlp = args.feed_forward;
  Layer layer = {};
  layer.norm = mixer.norm.as<const float>();
  layer.router = mixer.router.data;
  layer.q = mixer.q_proj.data;
  layer.gate_out = mixer.g_proj.data;
  for (size_t m = 0; m < mixer.k_proj.size(); ++m) {
    layer.k[m] = mixer.k_proj[m].data;
    layer.v[m] = mixer.v_proj[m].data;
    layer.a[m] = mixer.a_proj[m].data;
    layer.b[m] = mixer.b_proj[m].data;
  }
  layer.q_conv = mixer.q_conv.as<const float>();
  layer.k_conv = mixer.k_conv.as<const float>();
  layer.v_conv = mixer.v_conv.as<const float>();
  layer.a_log = mixer.a_log.as<const float>();
  layer.dt_bias = mixer.dt_bias.as<const float>();
  layer.q_window = Field(mixer.q_window);
  layer.k_window = Field(mixer.k_window);
  layer.v_window = Field(mixer.v_window);
  layer.written = Field(mixer.written);
  layer.state = Field(mixer.state);
  if (mixer.pending.capacity > 0) {
    layer.range = Field(mixer.pending.range);
    layer.keys = Field(mixer.pending.keys);
    layer.updates = Field(mixer.pending.updates);
    layer.decays = Field(mixer.pending.log_decay);
  }
  layer.out_norm = mixer.out_norm.as<const float>();
  layer.out = mixer.out_proj.data;
  layer.mlp_norm = mlp.norm.as<const float>();
  layer.gate = mlp.gate.data;
  layer.up = mlp.up.data;
  layer.down = mlp.down.data;
  return layer;
}

// The words by which blocks tell each other, of `rows` rows: how many there are and, from `words`
// on, where.
int64_t LayOutWords(Params& p, int key_dim, Word* words) {
  const int64_t rows = p.rows, entries = rows * p.columns;
  const int64_t keys = int64_t{p.heads} * key_dim, values = int64_t{p.value_heads} * p.value_dim;
  const int64_t gates = (p.value_heads + 3) / 4 * 4;
  const struct {
    Word*& place;
    int64_t count;
  } parts[] = {{p.q, entries * keys},      {p.k, entries * keys},
               {p.v, entries * values},    {p.decay, entries * gates},
               {p.beta, entries * gates},  {p.gate, rows * values},
               {p.read, entries * values}, {p.middle, rows * p.model_dim},
               {p.act, rows * p.mlp_dim},  {p.after, rows * p.model_dim}};
  int64_t count = 0;
  for (const auto& part : parts) {
    if (words != nullptr) part.place = words + count;
    count += part.count;
  }
  return count;
}

class Program final : public DecodeProgram {
 public:
  // Null: not for layers like these.
  static std::unique_ptr<DecodeProgram> Compile(Device& device, std::span<const DecodeLayer> layers,
                                                const DecodeHead* head) {
    const DeltaMixer& mixer = layers[0].mixer;
    auto program = std::make_unique<Program>(device);
    Params& p = program->params_;
    p = MakeParams(layers[0]);
    program->key_dim_ = mixer.key_dim;
    program->state_dtype_ = mixer.state.dtype;
    if (mixer.state.dtype != DType::kF32 && mixer.state.dtype != DType::kF16) return nullptr;
    for (p.rows = 1; p.rows <= kMaxRows && Supports(device, p, mixer.key_dim); ++p.rows) {
      program->most_rows_ = p.rows;
    }
    if (program->most_rows_ == 0) return nullptr;
    std::vector<Layer> table;
    for (const DecodeLayer& layer : layers) {
      if (!Supports(layer, p)) return nullptr;
      table.push_back(MakeLayer(layer));
    }
    p.layers = static_cast<const Layer*>(
        device.Constant(table.data(), static_cast<int64_t>(table.size() * sizeof(Layer))));
    if (p.layers == nullptr) return nullptr;
    program->count_ = static_cast<int>(layers.size());
    if (head != nullptr && Supports(*head, p)) program->head_ = *head;
    return program;
  }

  explicit Program(Device& device) : device_(device) {}

  DecodeDone Run(const DecodeStepArgs& step, int first, int count) override {
    Params p = params_;
    p.rows = static_cast<int>(step.hidden.shape[0]);
    // A row may be empty: then tokens are not rows.
    if (p.rows < 1 || p.rows > most_rows_ || step.slots.shape[0] != p.rows) {
      return DecodeDone::kNothing;
    }
    p.layers += first;
    p.count = count;
    p.hidden = step.hidden.as<float>();
    p.slots = step.slots.as<const int32_t>();
    p.forced = step.choice.forced.as<const int32_t>();
    p.indices = step.choice.indices.as<int32_t>();
    p.weights = step.choice.weights.as<float>();
    const bool logits = AddHead(step, first + count, p);
    const DecodeDone done = logits ? DecodeDone::kLogits : DecodeDone::kLayers;
    auto* const words = static_cast<Word*>(
        device_.Words(LayOutWords(p, key_dim_, nullptr) * static_cast<int64_t>(sizeof(Word))));
    if (words == nullptr) return done;  // the error is on record
    LayOutWords(p, key_dim_, words);
    p.counters = device_.counters();
    const bool launched = state_dtype_ == DType::kF32 ? LaunchF32(device_, p, key_dim_)
                                                      : LaunchF16(device_, p, key_dim_);
    return launched ? done : DecodeDone::kNothing;
  }

 private:
  bool AddHead(const DecodeStepArgs& step, int end, Params& p) const {
    const int64_t drawn = step.tokens.shape.rank == 0 ? 0 : step.tokens.shape[0];
    if (!head_.has_value() || end != count_ || drawn < 1 || drawn > p.rows ||
        step.logits.dtype != DType::kF32) {
      return false;
    }
    p.head = head_->head.data;
    p.head_norm = head_->norm.as<const float>();
    p.head_norm_eps = head_->norm_eps;
    p.tokens = step.tokens.as<const int32_t>();
    p.logits = step.logits.as<float>();
    p.drawn = static_cast<int>(drawn);
    p.vocab = head_->head.out_features;
    return true;
  }

  Device& device_;
  Params params_ = {};  // what is the same in all steps
  int key_dim_ = 0;
  DType state_dtype_ = DType::kF32;
  int count_ = 0;  // layers
  int most_rows_ = 0;
  std::optional<DecodeHead> head_;
};

}  // namespace

std::unique_ptr<DecodeProgram> CompileDecode(Device& device, std::span<const DecodeLayer> layers,
                                             const DecodeHead* head) {
  return HasHopperCode(device) ? Program::Compile(device, layers, head) : nullptr;
}

}  // namespace mneme::cuda::decode::stack
