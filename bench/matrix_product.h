// One matrix product with weights too large for the caches, by our kernel and by oneDNN.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace mneme {

// y = W x for `rows` rows, f32 in and out. Each run uses the next of enough equal matrices W that
// none is still in a cache when its turn comes again. oneDNN multiplies f32 by f32 for compute
// dtype f32 and bf16 by bf16 for bf16, its weights in the layout it prefers.
class MatrixProduct {
 public:
  MatrixProduct(Backend& backend, int rows, int out_features, int in_features);
  ~MatrixProduct();

  void Run();

  // False in builds without oneDNN.
  bool HasOneDnn() const;
  void RunOneDnn();

 private:
  struct OneDnn;

  Backend& backend_;
  const int rows_, out_, in_;
  std::vector<Buffer> buffers_;
  std::vector<PackedMatrix> weights_;
  TensorView x_, y_;
  size_t next_ = 0;
  std::unique_ptr<OneDnn> dnn_;
};

}  // namespace mneme
