// One instruction set's table of functions. Built once per instruction set.
#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/linear.h"

namespace mneme::MNEME_ISA {

const IsaOps& Ops() {
  static constexpr IsaOps kOps = {
      .max_entries = kMaxEntries,
      .linear_panel_step = LinearPanelStep,
      .linear_scratch_bytes = LinearScratchBytes,
      .linear = Linear,
      .pack = Pack,
      .embedding = Embedding,
      .add_positions = AddPositions,
      .position_layer = PositionLayer,
      .rms_norm = RmsNorm,
      .gated_rms_norm = GatedRmsNorm,
      .layer_norm = LayerNorm,
      .l2_norm = L2Norm,
      .sum_norm = SumNorm,
      .divide = Divide,
      .softmax = Softmax,
      .map_features = MapFeatures,
      .rope = Rope,
      .add_bias = AddBias,
      .activate = Activate,
      .multiply = Multiply,
      .add_scaled = AddScaled,
      .swiglu = SwiGlu,
      .mix_memories = MixMemories,
      .route_top_k = RouteTopK,
      .delta_gates = DeltaGates,
      .decay_gates = DecayGates,
      .short_conv = ShortConv,
      .token_shift = TokenShift,
      .rwkv7_gates = Rwkv7Gates,
      .value_residual = ValueResidual,
      .rwkv7_output = Rwkv7Output,
      .selective_scan = SelectiveScan,
      .discretize = Discretize,
      .matrix_memory_scratch = MatrixMemoryScratch,
      .matrix_memory = MatrixMemory,
      .attention = Attention,
      .neural_memory_scratch = NeuralMemoryScratch,
      .neural_memory = NeuralMemory,
      .keep_gate = KeepGate,
      .chunk_mean = ChunkMean,
      .encode_tokens = EncodeTokens,
      .squared_distances = SquaredDistances,
      .engram_attention = EngramAttention,
      .add_from = AddFrom,
      .segment_attention = SegmentAttention,
      .chunk_pool = ChunkPool,
      .expand_streams = ExpandStreams,
      .read_streams = ReadStreams,
      .write_streams = WriteStreams,
      .sum_streams = SumStreams,
      .mix_views = MixViews,
      .sample = Sample,
  };
  return kOps;
}

}  // namespace mneme::MNEME_ISA
