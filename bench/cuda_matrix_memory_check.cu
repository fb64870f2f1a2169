#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda_matrix_memory_check.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/cuda/matrix_memory/rules/rules.h"
#include "kernels/float16.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/state_row.h"

namespace mneme {
namespace {

using Rule = MatrixRule;
namespace rules = cuda::matrix_memory::rules;

constexpr int kSlots = 3, kMemories = 2;

struct Dims {
  int heads, fewer, key_dim, value_dim;  // some tensors have `fewer` heads
};

// Tensors twice: f32 on the device, f64 on the host.
class Problem {
 public:
  Problem(const Rule& rule, const Dims& dims, DType dtype, const std::vector<int>& lengths)
      : dims_(dims), dtype_(dtype) {
    const int64_t heads = dims.heads, n = dims.fewer, keys = dims.key_dim, values = dims.value_dim;
    std::vector<int> offsets = {0}, slots, memories, fresh;
    for (size_t s = 0; s < lengths.size(); ++s) {
      offsets.push_back(offsets.back() + lengths[s]);
      slots.push_back(s == 1 ? -1 : static_cast<int>(s) % kSlots);
      memories.push_back(static_cast<int>(s) / kSlots % kMemories);
      fresh.push_back(s == 0 && lengths[s] > 0);
    }
    const int64_t entries = offsets.back();
    device.rule = host.rule = rule;
    device.scale = host.scale = 0.75f;
    const double key_scale = 1 / std::sqrt(static_cast<double>(keys));
    Both(&MatrixMemoryArgs::q, {entries, n, keys}, [&] { return normal_(random_) * key_scale; });
    Both(&MatrixMemoryArgs::k, {entries, n, keys}, [&] { return normal_(random_) * key_scale; });
    Both(&MatrixMemoryArgs::v, {entries, heads, values}, [&] { return normal_(random_); });
    const auto decay = [&] {
      const double x = normal_(random_);
      return x > 1.8 ? -INFINITY : x > 1.4 ? 0.0 : -0.3 * x * x;
    };
    switch (rule.decay) {
      case Rule::Decay::kNone:
        break;
      case Rule::Decay::kConstant:
        Floats(&MatrixMemoryArgs::log_decay, {heads}, decay);
        break;
      case Rule::Decay::kHead:
        Both(&MatrixMemoryArgs::log_decay, {entries, heads}, decay);
        break;
      case Rule::Decay::kKey:
        Both(&MatrixMemoryArgs::log_decay, {entries, n, keys}, decay);
        break;
      case Rule::Decay::kValue:
        Both(&MatrixMemoryArgs::log_decay, {entries, heads, values}, decay);
        break;
    }
    if (rule.correction == Rule::Correction::kDelta) {
      Both(&MatrixMemoryArgs::beta, {entries, heads}, [&] { return uniform_(random_); });
    }
    if (rule.correction == Rule::Correction::kGeneral) {
      const auto part = [&] { return 0.5 * normal_(random_) * key_scale; };
      Both(&MatrixMemoryArgs::c, {entries, n, keys}, part);
      Both(&MatrixMemoryArgs::e, {entries, n, keys}, part);
    }
    if (rule.read == Rule::Read::kBeforeWithBonus) {
      Floats(&MatrixMemoryArgs::bonus, {heads, keys}, [&] { return normal_(random_); });
    }
    Both(&MatrixMemoryArgs::out, {entries, heads, values}, [] { return NAN; });
    Segments& on_device = device.segments;
    Segments& on_host = host.segments;
    on_device.count = on_host.count = static_cast<int>(lengths.size());
    on_device.longest = on_host.longest = *std::max_element(lengths.begin(), lengths.end());
    Ints(offsets, &on_device.offsets, &on_host.offsets);
    Ints(slots, &on_device.slots, &on_host.slots);
    Ints(memories, &on_device.memories, &on_host.memories);
    Ints(fresh, &on_device.fresh, &on_host.fresh);
    MakeStates();
    cudaDeviceSynchronize();  // copies may return before they end, and streams do not wait for them
  }
  ~Problem() {
    cudaDeviceSynchronize();
    for (void* data : device_memory_) cudaFree(data);
  }

  // The largest error of an output or a state, relative to the largest value; NaN where one is.
  double Error() {
    std::vector<float> out(host.out.shape.elements());
    cudaMemcpy(out.data(), device.out.data, 4 * out.size(), cudaMemcpyDeviceToHost);
    double error = 0, largest = 0;
    const int64_t width = host.out.shape[1] * host.out.shape[2];
    for (int s = 0; s < host.segments.count; ++s) {
      if (host.segments.slots.as<int>()[s] < 0) continue;
      for (int64_t i = host.segments.offsets.as<int>()[s] * width;
           i < host.segments.offsets.as<int>()[s + 1] * width; ++i) {
        Compare(out[i], host.out.as<double>()[i], &error, &largest);
      }
    }
    double worst = error / largest;
    error = largest = 0;
    std::vector<char> stored(state_bytes_);
    const int64_t rows = int64_t{dims_.heads} * dims_.value_dim, pitch = Pitch();
    for (int m = 0; m < kSlots * kMemories; ++m) {
      cudaMemcpy(stored.data(), device.state.At(m / kMemories, m % kMemories), state_bytes_,
                 cudaMemcpyDeviceToHost);
      const double* expected = host.state.as<double>(m / kMemories, m % kMemories);
      for (int64_t i = 0; i < rows * dims_.key_dim; ++i) {
        const int64_t row = i / dims_.key_dim, at = row * pitch + i % dims_.key_dim;
        Compare(Element(stored.data(), row, at), expected[i], &error, &largest);
      }
    }
    const double state_error = error / largest;
    return std::isnan(state_error) || state_error > worst ? state_error : worst;
  }

  MatrixMemoryArgs device, host;

 private:
  static void Compare(double x, double expected, double* error, double* largest) {
    const double difference = std::abs(x - expected);
    if (!(difference <= *error)) *error = difference;  // NaN stays
    *largest = std::max(*largest, std::abs(expected));
  }
  int64_t Pitch() const { return StateRowPitch(dtype_, dims_.key_dim); }
  double Element(const char* stored, int64_t row, int64_t at) const {
    switch (dtype_) {
      case DType::kF32:
        return reinterpret_cast<const float*>(stored)[at];
      case DType::kF16:
        return F32FromF16(reinterpret_cast<const uint16_t*>(stored)[at]);
      default: {
        float scale;
        std::memcpy(&scale, stored + (row + 1) * Pitch() - 4, 4);
        return scale * reinterpret_cast<const int8_t*>(stored)[at];
      }
    }
  }
  // Old matrices that the dtype has exactly.
  void MakeStates() {
    const int64_t rows = int64_t{dims_.heads} * dims_.value_dim, pitch = Pitch();
    state_bytes_ = rows * pitch * SizeOf(dtype_);
    const int64_t field = (state_bytes_ + 63) / 64 * 64, elements = rows * dims_.key_dim;
    std::vector<char> bytes(field * kSlots * kMemories, 0x55);
    auto& values = host_memory_.emplace_back(elements * kSlots * kMemories);
    for (int m = 0; m < kSlots * kMemories; ++m) {
      char* stored = bytes.data() + m * field;
      for (int64_t row = 0; row < rows; ++row) {
        const float scale = 1.0f / 64;
        if (dtype_ == DType::kI8) {
          std::memset(stored + row * pitch, 0, pitch - 4);
          std::memcpy(stored + (row + 1) * pitch - 4, &scale, 4);
        }
        for (int i = 0; i < dims_.key_dim; ++i) {
          const int n = static_cast<int>(random_() % 255) - 127;
          const float x = scale * n;
          values[m * elements + row * dims_.key_dim + i] = x;
          char* at = stored + (row * pitch + i) * SizeOf(dtype_);
          if (dtype_ == DType::kF32) {
            std::memcpy(at, &x, 4);
          } else if (dtype_ == DType::kF16) {
            const uint16_t half = F16FromF32(x);
            std::memcpy(at, &half, 2);
          } else {
            *at = static_cast<char>(n);
          }
        }
      }
    }
    auto* base = static_cast<std::byte*>(Upload(bytes.data(), bytes.size()));
    device.state = {base, field * kMemories, 0, field, dtype_};
    host.state = {reinterpret_cast<std::byte*>(values.data()), 8 * elements * kMemories, 0,
                  8 * elements, DType::kF64};
  }
  void* Upload(const void* data, size_t bytes) {
    void* to = nullptr;
    cudaMalloc(&to, std::max<size_t>(bytes, 16));
    cudaMemcpy(to, data, bytes, cudaMemcpyHostToDevice);
    device_memory_.push_back(to);
    return to;
  }
  template <typename Make>
  void Both(TensorView MatrixMemoryArgs::*member, const Shape& shape, const Make& make) {
    auto& values = host_memory_.emplace_back(shape.elements());
    std::vector<float> floats(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = floats[i] = static_cast<float>(make());
    host.*member = {values.data(), DType::kF64, shape};
    device.*member = {Upload(floats.data(), 4 * floats.size()), DType::kF32, shape};
  }
  template <typename Make>
  void Floats(TensorView MatrixMemoryArgs::*member, const Shape& shape, const Make& make) {
    auto& floats = host_floats_.emplace_back(shape.elements());
    for (float& x : floats) x = static_cast<float>(make());
    host.*member = {floats.data(), DType::kF32, shape};
    device.*member = {Upload(floats.data(), 4 * floats.size()), DType::kF32, shape};
  }
  void Ints(const std::vector<int>& values, TensorView* on_device, TensorView* on_host) {
    auto& kept = host_ints_.emplace_back(values);
    const Shape shape{static_cast<int64_t>(values.size())};
    *on_host = {kept.data(), DType::kI32, shape};
    *on_device = {Upload(kept.data(), 4 * kept.size()), DType::kI32, shape};
  }

  const Dims dims_;
  const DType dtype_;
  int64_t state_bytes_ = 0;
  std::mt19937 random_{7};
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::vector<std::vector<double>> host_memory_;
  std::vector<std::vector<float>> host_floats_;
  std::vector<std::vector<int>> host_ints_;
  std::vector<void*> device_memory_;
};

std::string NameOf(const Rule& rule, const Dims& dims, DType dtype, int tile) {
  char text[160];
  std::snprintf(text, sizeof(text), "decay %d correction %d read %d, %dx%dx%d, %s, tile %d",
                static_cast<int>(rule.decay), static_cast<int>(rule.correction),
                static_cast<int>(rule.read), dims.heads, dims.key_dim, dims.value_dim, Name(dtype),
                tile);
  return text;
}

}  // namespace

bool CheckMatrixMemories(cuda::Device& device) {
  int checked = 0, wrong = 0;
  double worst[3] = {0, 0, 0};
  ReferenceKernels reference(DType::kF32);
  const auto check = [&](const Rule& rule, const Dims& dims, DType dtype,
                         const std::vector<int>& lengths, int tile) {
    Problem problem(rule, dims, dtype, lengths);
    if (tile < 0) {
      cuda::matrix_memory::MatrixMemory(device, problem.device);
    } else {
      rules::Problem launched = rules::MakeProblem(problem.device);
      if (!rules::Supports(launched, dtype)) return;
      launched.lengths = rules::Lengths::kOne;
      rules::LaunchTuned(device, launched, dtype, static_cast<rules::Tile>(tile));
    }
    cudaDeviceSynchronize();
    reference.MatrixMemory(problem.host);
    const double error = problem.Error();
    // A state of f16 or int8 is rounded once, to half a unit of the row's largest.
    const double bound = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 1e-3 : 5e-3;
    double& most = worst[dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1 : 2];
    most = std::max(most, error);
    ++checked;
    if (error <= bound && device.ok()) return;
    ++wrong;
    if (wrong > 20) return;
    std::printf("wrong: %s: %g %s\n", NameOf(rule, dims, dtype, tile).c_str(), error,
                device.TakeError().c_str());
  };
  const std::vector<int> ragged = {5, 3, 0, 1, 17, 2}, ones = {1, 1, 1, 0, 1, 1};
  for (const auto decay : {Rule::Decay::kNone, Rule::Decay::kConstant, Rule::Decay::kHead,
                           Rule::Decay::kKey, Rule::Decay::kValue}) {
    for (const auto correction :
         {Rule::Correction::kNone, Rule::Correction::kDelta, Rule::Correction::kGeneral}) {
      for (const auto read : {Rule::Read::kAfter, Rule::Read::kBeforeWithBonus}) {
        const Rule rule = {decay, correction, read};
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
          for (const Dims& dims : {Dims{4, 2, 32, 20}, Dims{2, 1, 67, 13}, Dims{4, 4, 64, 36},
                                   Dims{2, 1, 128, 64}, Dims{2, 2, 256, 44}, Dims{2, 1, 512, 20}}) {
            check(rule, dims, dtype, ragged, -1);
            check(rule, dims, dtype, ones, -1);
            for (int tile = 0; tile < 5; ++tile) {
              check(rule, dims, dtype, ones, tile);
            }
          }
        }
      }
    }
  }
  std::printf("%d of %d cases wrong; worst error f32 %.2g, f16 %.2g, int8 %.2g\n", wrong, checked,
              worst[0], worst[1], worst[2]);
  return wrong == 0;
}

}  // namespace mneme
