// The border between the CPU backend, built for any processor, and its hot loops, built once per
// instruction set: a table of functions. Each does a range of an operation's independent outputs on
// the calling thread; kernels.h defines the operations, cpu_kernels.cc divides them.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace mneme {

// y[e] = W x[row(e)] for entries [0, entries) and the packed panels [panel_begin, panel_end) of W.
struct LinearTask {
  const float* x = nullptr;             // [rows, in_features]
  const int32_t* entry_rows = nullptr;  // [entries], or null: row(e) = e
  int entries = 0;
  PackedMatrix weights;
  float* y = nullptr;  // [entries, out_features]
  bool accumulate = false;
  bool round_activations = false;  // to bf16, for compute dtype bf16
  int panel_begin = 0, panel_end = 0;
};

// One thread's copy of a task's activations in the order the inner loop reads them. Kept from task
// to task: consecutive tasks mostly differ in weights only.
struct LinearScratch {
  void* data = nullptr;  // of the size linear_scratch_bytes() gives, 64-byte aligned
  // These say which activations `data` holds. They are cleared before each operation, as the
  // activations may have changed.
  const float* x = nullptr;
  const int32_t* entry_rows = nullptr;
  int entries = 0;
  int in_features = 0;
  int form = -1;
};

// One thread's working memory for sampling, each of [vocab].
struct SampleScratch {
  double* logits = nullptr;
  double* probabilities = nullptr;
  int32_t* candidates = nullptr;
};

// Tokens [begin, end) of a row, counted from its first one, and the heads that share the keys and
// values of one.
struct AttentionTask {
  int row = 0, kv_head = 0;
  int begin = 0, end = 0;

  // Floats that its working memory takes.
  static int64_t ScratchFloats(int64_t queries, int64_t value_dim) {
    return queries * (kContextBlock + value_dim + 2);
  }
};

struct IsaOps {
  // At most this many entries per LinearTask.
  int max_entries = 0;
  // The panels of such a task are best a multiple of this.
  int (*linear_panel_step)(const LinearTask& task) = nullptr;
  int64_t (*linear_scratch_bytes)(int entries, int in_features) = nullptr;
  void (*linear)(const LinearTask& task, LinearScratch& scratch) = nullptr;
  // Panels [begin, end) of a matrix in the layout described in packed_layout.h.
  void (*pack)(const TensorView& matrix, void* dst, int begin, int end) = nullptr;

  // Ranges of tokens or entries; of rows for what works on heads by themselves, a row being one
  // head of one entry; of elements for activate, multiply and swiglu.
  void (*embedding)(const EmbeddingArgs&, int64_t begin, int64_t end) = nullptr;
  void (*add_positions)(const AddPositionsArgs&, int64_t begin, int64_t end) = nullptr;
  void (*position_layer)(const PositionLayerArgs&, int64_t begin, int64_t end) = nullptr;
  void (*rms_norm)(const RmsNormArgs&, int64_t begin, int64_t end) = nullptr;
  void (*gated_rms_norm)(const GatedRmsNormArgs&, int64_t begin, int64_t end) = nullptr;
  void (*layer_norm)(const LayerNormArgs&, int64_t begin, int64_t end) = nullptr;
  void (*l2_norm)(const L2NormArgs&, int64_t begin, int64_t end) = nullptr;
  void (*sum_norm)(const SumNormArgs&, int64_t begin, int64_t end) = nullptr;
  void (*divide)(const DivideArgs&, int64_t begin, int64_t end) = nullptr;
  void (*softmax)(const SoftmaxArgs&, int64_t begin, int64_t end) = nullptr;
  void (*map_features)(const FeatureMapArgs&, int64_t begin, int64_t end) = nullptr;
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end) = nullptr;
  void (*add_bias)(const AddBiasArgs&, int64_t begin, int64_t end) = nullptr;
  void (*activate)(const ActivateArgs&, int64_t begin, int64_t end) = nullptr;
  void (*multiply)(const MultiplyArgs&, int64_t begin, int64_t end) = nullptr;
  void (*add_scaled)(const AddScaledArgs&, int64_t begin, int64_t end) = nullptr;  // of rows
  void (*swiglu)(const SwiGluArgs&, int64_t begin, int64_t end) = nullptr;
  void (*mix_memories)(const MixMemoriesArgs&, int64_t begin, int64_t end) = nullptr;
  void (*route_top_k)(const RouteTopKArgs&, int64_t begin, int64_t end) = nullptr;
  void (*delta_gates)(const DeltaGatesArgs&, int64_t begin, int64_t end) = nullptr;
  void (*decay_gates)(const DecayGatesArgs&, int64_t begin, int64_t end) = nullptr;  // of rows
  // Channels [begin, end) of all segments; begin is a multiple of 16.
  void (*short_conv)(const ShortConvArgs&, int64_t begin, int64_t end) = nullptr;
  // Channels [begin, end) of all segments, then rows, entries and rows.
  void (*token_shift)(const TokenShiftArgs&, int64_t begin, int64_t end) = nullptr;
  void (*rwkv7_gates)(const Rwkv7GatesArgs&, int64_t begin, int64_t end) = nullptr;
  void (*value_residual)(const ValueResidualArgs&, int64_t begin, int64_t end) = nullptr;
  void (*rwkv7_output)(const Rwkv7OutputArgs&, int64_t begin, int64_t end) = nullptr;
  // Channels [begin, end) of all segments; begin is a multiple of 16.
  void (*selective_scan)(const SelectiveScanArgs&, int64_t begin, int64_t end) = nullptr;
  void (*discretize)(const DiscretizeArgs&, int64_t begin, int64_t end) = nullptr;
  // The floats of working memory that a call of the next takes.
  int64_t (*matrix_memory_scratch)(const MatrixMemoryArgs&) = nullptr;
  // Rows [begin, end) of one head's matrix of one segment.
  void (*matrix_memory)(const MatrixMemoryArgs&, int segment, int head, int begin, int end,
                        float* scratch) = nullptr;
  // Writes the outputs of a task; appends nothing. `scratch` has ScratchFloats of (end - begin)
  // times the heads of a group.
  void (*attention)(const AttentionArgs&, const AttentionTask& task, float* scratch) = nullptr;
  // The floats of working memory that a call of the next takes, and one head of one segment.
  int64_t (*neural_memory_scratch)(const NeuralMemoryArgs&) = nullptr;
  void (*neural_memory)(const NeuralMemoryArgs&, int segment, int head, float* scratch) = nullptr;
  void (*keep_gate)(const KeepGateArgs&, int64_t begin, int64_t end) = nullptr;  // of entries
  // Channels [begin, end) of all segments; begin is a multiple of 16.
  void (*chunk_mean)(const ChunkMeanArgs&, int64_t begin, int64_t end) = nullptr;
  // One row, queries [begin, end).
  void (*encode_tokens)(const EncodeTokensArgs&, int row, int64_t begin, int64_t end) = nullptr;
  // The squared distances of x to each of `count` others, one behind the other.
  void (*squared_distances)(const float* x, const float* others, int64_t count, int64_t dim,
                            double* distances) = nullptr;
  // One head of one row, whose tokens see `count` engrams. `scores` has a float for each and the
  // next fifteen.
  void (*engram_attention)(const EngramAttentionArgs&, int row, int head, int count,
                           float* scores) = nullptr;
  void (*add_from)(const AddFromArgs&, int64_t begin, int64_t end) = nullptr;  // of tokens
  // One head of one row. `scores` has a float for each token that is seen and the next fifteen.
  void (*segment_attention)(const SegmentAttentionArgs&, int row, int head,
                            float* scores) = nullptr;
  void (*chunk_pool)(const ChunkPoolArgs&, int64_t begin, int64_t end) = nullptr;
  // Streams of tokens, tokens, streams of tokens, tokens, tokens.
  void (*expand_streams)(const ExpandStreamsArgs&, int64_t begin, int64_t end) = nullptr;
  void (*read_streams)(const ReadStreamsArgs&, int64_t begin, int64_t end) = nullptr;
  void (*write_streams)(const WriteStreamsArgs&, int64_t begin, int64_t end) = nullptr;
  void (*sum_streams)(const SumStreamsArgs&, int64_t begin, int64_t end) = nullptr;
  void (*mix_views)(const MixViewsArgs&, int64_t begin, int64_t end) = nullptr;
  // One row; `uniform` is its random number in [0, 1).
  void (*sample)(const SampleArgs&, const SamplingRow&, int r, double uniform,
                 SampleScratch& scratch) = nullptr;
};

namespace baseline {
const IsaOps& Ops();
}
namespace avx2 {
const IsaOps& Ops();
}
namespace avx512 {
const IsaOps& Ops();
}
namespace avx512_bf16 {
const IsaOps& Ops();
}
namespace amx {
const IsaOps& Ops();
}

}  // namespace mneme
