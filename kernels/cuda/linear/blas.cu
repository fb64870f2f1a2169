// Ungrouped products of many rows through cuBLAS: 16-bit operands with cuBLASLt, f32 without TF32.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "kernels/cuda/linear/batch.h"

namespace mneme::cuda::linear {
namespace {

// cuBLAS sees column-major matrices: y^T [out, rows] = W^T-as-stored transposed, times x^T.
struct LtProduct {
  // `bias`: null, or what is added to each row of y.
  LtProduct(const PackedMatrix& weights, int rows, const float* bias)
      : dtype(weights.dtype),
        out(weights.out_features),
        rows(rows),
        in(weights.in_features),
        bias(bias) {
    const cudaDataType_t type = dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof(transpose));
    if (bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;  // of the dtype of y
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                     sizeof(epilogue));
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                     sizeof(bias));
    }
    cublasLtMatrixLayoutCreate(&w, type, in, out, in);
    cublasLtMatrixLayoutCreate(&x, type, in, rows, in);
    cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, out, rows, out);
  }
  ~LtProduct() {
    cublasLtMatrixLayoutDestroy(y);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(w);
    cublasLtMatmulDescDestroy(operation);
  }
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  const DType dtype;
  const int out, rows, in;
  const float* const bias;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
};

cublasStatus_t ChooseAlgorithm(Device& device, const LtProduct& product,
                               cublasLtMatmulAlgo_t* algorithm) {
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const size_t workspace = kLinearBlasWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace, sizeof(workspace));
  const uint32_t alignment = 16;
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment));
  }
  // Partial sums may only be added in a fixed order, in fp32.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                       &reductions, sizeof(reductions));
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  status = cublasLtMatmulAlgoGetHeuristic(device.blas_lt(), product.operation, product.w, product.x,
                                          product.y, product.y, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  *algorithm = result.algo;
  return CUBLAS_STATUS_SUCCESS;
}

bool Supports(Device& device, const LtProduct& product, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result;
  return cublasLtMatmulAlgoCheck(device.blas_lt(), product.operation, product.w, product.x,
                                 product.y, product.y, &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(kLinearBlasWorkspaceBytes);
}

// Asking takes about as long as a small product, and what cuBLAS then loads for the first time
// takes milliseconds. So answers are kept, for the life of the program, and products have the
// algorithm of the next of eight numbers of rows per octave, of which the engine tries those that
// are likely beside decoding rows before the model is ready.
cublasStatus_t KnownAlgorithm(Device& device, const PackedMatrix& weights, const LtProduct& product,
                              cublasLtMatmulAlgo_t* algorithm) {
  using Key = std::array<int, 5>;
  static auto* const known = new std::map<Key, cublasLtMatmulAlgo_t>;
  static auto* const mutex = new std::mutex;
  const auto key_of = [](const LtProduct& of) {
    return Key{static_cast<int>(of.dtype), of.out, of.rows, of.in, of.bias != nullptr};
  };
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto find = [&](const LtProduct& of) {
    const auto it = known->find(key_of(of));
    if (it != known->end()) *algorithm = it->second;
    return it != known->end();
  };
  if (find(product)) return CUBLAS_STATUS_SUCCESS;
  const int step = std::max(1, static_cast<int>(std::bit_floor(unsigned(product.rows)) / 8));
  const LtProduct likely(weights, (product.rows + step - 1) / step * step, product.bias);
  if (!find(likely)) {
    const cublasStatus_t status = ChooseAlgorithm(device, likely, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    known->emplace(key_of(likely), *algorithm);
  }
  if (likely.rows == product.rows) return CUBLAS_STATUS_SUCCESS;
  if (!Supports(device, product, *algorithm)) {
    const cublasStatus_t status = ChooseAlgorithm(device, product, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  known->emplace(key_of(product), *algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void LinearBlas(Device& device, const LinearArgs& args, const void* rounded, void* workspace) {
  const float one = 1, beta = args.accumulate ? 1 : 0;
  const PackedMatrix& w = args.weights[0];
  if (w.dtype == DType::kF32) {
    device.Check(cublasSgemm(device.blas(), CUBLAS_OP_T, CUBLAS_OP_N, w.out_features,
                             static_cast<int>(args.y.shape[0]), w.in_features, &one,
                             static_cast<const float*>(w.data), w.in_features, args.x.as<float>(),
                             w.in_features, &beta, args.y.as<float>(), w.out_features),
                 "cublasSgemm");
    return;
  }
  const LtProduct product(w, static_cast<int>(args.y.shape[0]), args.bias.as<const float>());
  cublasLtMatmulAlgo_t algorithm;
  const cublasStatus_t status = KnownAlgorithm(device, w, product, &algorithm);
  device.Check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS) return;
  device.Check(cublasLtMatmul(device.blas_lt(), product.operation, &one, w.data, product.w, rounded,
                              product.x, &beta, args.y.data, product.y, args.y.data, product.y,
                              &algorithm, workspace, kLinearBlasWorkspaceBytes, device.stream()),
               "cublasLtMatmul");
}

}  // namespace mneme::cuda::linear
