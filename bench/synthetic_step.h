// One step of a Mixture-of-Memories model with random weights, as the sequence of kernel calls that
// models/ makes, so that the kernels can be timed together, in their order and with their real
// working set, without a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace mneme {

struct StepShape {
  int model_dim = 1024, layers = 24, heads = 4, key_dim = 256, value_dim = 256;
  int memories = 4, top_k = 2, conv_width = 4, mlp_dim = 2048, vocab = 32000;
  DType weight_dtype = DType::kBF16;
};

class SyntheticStep {
 public:
  // `rows` sessions of `tokens_per_row` tokens each in every step. `backend` is a CPU backend.
  SyntheticStep(Backend& backend, const StepShape& shape, int rows, int tokens_per_row);

  void Run();

  // Bytes of the last step: weights of the products and rows of the embedding, each read once, and
  // memories and windows, read and written.
  double weight_bytes() const { return weight_bytes_; }
  double state_bytes() const { return state_bytes_; }
  double flops() const { return flops_; }
  // Seconds of the last step by operation.
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  struct Layer {
    PackedMatrix router, q, gate, out, mlp_gate, mlp_up, mlp_down;
    std::vector<PackedMatrix> k, v, a, b;
  };

  void* Memory(int64_t bytes);
  TensorView Activation(Shape shape);
  TensorView Indices(Shape shape);
  TensorView Random(Shape shape, float low, float high);
  PackedMatrix Weights(int out, int in);
  StateView State(int layer, int64_t offset, int64_t memory_bytes, DType dtype) const;
  void Mix(int layer);
  void CountGroup(const PackedMatrix& weights, int64_t entries);
  template <typename Call>
  void Timed(const char* name, Call call);

  Backend& backend_;
  Kernels& kernels_;
  const StepShape shape_;
  const int rows_, tokens_, groups_, columns_;
  std::vector<Buffer> buffers_;
  std::byte* arena_ = nullptr;
  int64_t arena_left_ = 0;
  std::vector<uint16_t> random_bits_;

  std::vector<Layer> layers_;
  PackedMatrix lm_head_;
  TensorView table_, norm_, head_norm_, conv_, a_log_, dt_bias_;
  std::byte* slabs_ = nullptr;
  int64_t slab_bytes_ = 0, layer_bytes_ = 0;

  // A step's inputs and everything computed from them.
  TensorView ids_, row_offsets_, slots_, last_rows_;
  TensorView hidden_, x_, router_, indices_, weights_, entry_tokens_, token_entries_;
  TensorView group_offsets_, q_, gate_, k_, v_, a_, b_, qe_, ke_, ve_, decay_, beta_, mixed_;
  TensorView mlp_gate_, mlp_up_, last_, logits_;
  Segments segments_;

  double weight_bytes_ = 0, state_bytes_ = 0, flops_ = 0;
  std::map<std::string, double> seconds_;
};

}  // namespace mneme
