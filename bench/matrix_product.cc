#include "bench/matrix_product.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "kernels/float16.h"

#if defined(MNEME_HAVE_DNNL)
#include <dnnl.hpp>
#endif

namespace mneme {
namespace {

constexpr int64_t kWorkingSet = int64_t{192} << 20;

}  // namespace

#if defined(MNEME_HAVE_DNNL)
struct MatrixProduct::OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
  dnnl::memory x, y;
  std::vector<dnnl::memory> weights;
  size_t next = 0;
};
#else
struct MatrixProduct::OneDnn {};
#endif

MatrixProduct::MatrixProduct(Backend& backend, int rows, int out_features, int in_features)
    : backend_(backend), rows_(rows), out_(out_features), in_(in_features) {
  const auto allocate = [&](int64_t bytes) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(backend, bytes);
    CHECK_OK(buffer.status());
    buffers_.push_back(*std::move(buffer));
    return buffers_.back().data();
  };
  std::vector<uint16_t> matrix(static_cast<size_t>(out_) * in_);
  for (size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = BF16FromF32(UniformFloat(1, 0, i) - 0.5f);
  }
  const int64_t bytes = backend.PackedBytes(DType::kBF16, out_, in_);
  const int64_t copies = std::max<int64_t>(1, kWorkingSet / bytes);
  std::byte* packed = allocate(copies * bytes);
  for (int64_t i = 0; i < copies; ++i) {
    weights_.push_back(
        backend.PackMatrix({matrix.data(), DType::kBF16, {out_, in_}}, packed + i * bytes));
  }
  x_ = {allocate(int64_t{4} * rows * in_), DType::kF32, {rows, in_}};
  y_ = {allocate(int64_t{4} * rows * out_), DType::kF32, {rows, out_}};
  for (int64_t i = 0; i < x_.shape.elements(); ++i) {
    x_.as<float>()[i] = UniformFloat(2, 0, static_cast<uint64_t>(i)) - 0.5f;
  }

#if defined(MNEME_HAVE_DNNL)
  using dnnl::memory;
  dnn_ = std::make_unique<OneDnn>();
  const bool bf16 = backend.compute_dtype() == DType::kBF16;
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc x({rows_, in_}, type, memory::format_tag::ab);
  const memory::desc any({in_, out_}, type, memory::format_tag::any);
  const memory::desc y({rows_, out_}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc product(dnnl::matmul::desc(x, any, y), dnn_->engine);
  dnn_->product = dnnl::matmul(product);
  dnn_->x = memory(x, dnn_->engine);
  dnn_->y = memory(y, dnn_->engine);
  std::fill_n(static_cast<char*>(dnn_->x.get_data_handle()), x.get_size(), char{0x3c});
  const int64_t size = static_cast<int64_t>(product.weights_desc().get_size());
  for (int64_t i = 0; i < std::max<int64_t>(1, kWorkingSet / size); ++i) {
    dnn_->weights.emplace_back(product.weights_desc(), dnn_->engine);
    std::fill_n(static_cast<char*>(dnn_->weights.back().get_data_handle()), size, char{0x3c});
  }
#endif
}

MatrixProduct::~MatrixProduct() = default;

void MatrixProduct::Run() {
  const PackedMatrix& weights = weights_[next_++ % weights_.size()];
  const LinearArgs args[] = {{.x = x_, .weights = {&weights, 1}, .y = y_}};
  backend_.kernels().Linear(args);
}

bool MatrixProduct::HasOneDnn() const { return dnn_ != nullptr; }

void MatrixProduct::RunOneDnn() {
#if defined(MNEME_HAVE_DNNL)
  dnnl::memory& weights = dnn_->weights[dnn_->next++ % dnn_->weights.size()];
  dnn_->product.execute(
      dnn_->stream,
      {{DNNL_ARG_SRC, dnn_->x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, dnn_->y}});
  dnn_->stream.wait();
#endif
}

}  // namespace mneme
