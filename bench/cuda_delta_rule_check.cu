#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "bench/cuda_delta_rule_check.h"
#include "kernels/cuda/matrix_memory/decode/decode.h"
#include "kernels/cuda/matrix_memory/launch.h"
#include "kernels/cuda/matrix_memory/matrix_memory.h"
#include "kernels/state_row.h"

namespace mneme {
namespace {

using cuda::Device;
using cuda::matrix_memory::Problem;
using cuda::matrix_memory::Task;
using cuda::matrix_memory::decode::DecodePlan;
using cuda::matrix_memory::decode::DecodeTile;
using cuda::matrix_memory::decode::LaunchDecode;

constexpr int kSlots = 5, kMemories = 3, kCapacity = 16, kSteps = 90;

struct Dims {
  int heads, value_heads, key_dim, value_dim;
};

// Memories that tokens go through at random, on the device and on the host.
class Check {
 public:
  Check(Device& device, Dims dims, DType dtype, int tile)
      : device_(device), dims_(dims), dtype_(dtype), tile_(tile) {
    const auto field = [&](int64_t bytes, DType type) {
      StateView view = {nullptr, 0, slab_bytes_, bytes, type};
      slab_bytes_ += (bytes * kMemories + 63) / 64 * 64;
      return view;
    };
    written_ = field(1, DType::kU8);
    state_ = field(StateBytes(), dtype);
    const DType term = PendingDType(dtype);
    const int64_t entries = int64_t{SizeOf(term)} * kCapacity;
    pending_ = {.capacity = kCapacity,
                .phase = field(4, DType::kI32),
                .range = field(8, DType::kI32),
                .keys = field(entries * dims.heads * dims.key_dim, term),
                .updates = field(entries * dims.value_heads * dims.value_dim, term),
                .log_decay = field(4ll * kCapacity * dims.value_heads, DType::kF32)};
    cudaMalloc(&slabs_, slab_bytes_ * kSlots);
    cudaMemset(slabs_, 0xff, slab_bytes_ * kSlots);
    for (StateView* view : {&written_, &state_, &pending_.phase, &pending_.range, &pending_.keys,
                            &pending_.updates, &pending_.log_decay}) {
      view->base = reinterpret_cast<std::byte*>(slabs_);
      view->slab_bytes = slab_bytes_;
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      cudaMemset(slabs_ + slot * slab_bytes_ + written_.offset, 0, kMemories);
      cudaMemset(slabs_ + slot * slab_bytes_ + pending_.phase.offset, slot, 4);
    }
    host_.resize(kSlots * kMemories);
  }
  ~Check() { cudaFree(slabs_); }

  // The largest error of an output, and of a matrix at the end, relative to the largest value.
  bool Run() {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      if (step % 37 == 36) Settle();
    }
    Settle();
    double error = 0, largest = 0;
    for (int i = 0; i < kSlots * kMemories; ++i) {
      if (host_[i].empty()) continue;
      const char* at = slabs_ + i / kMemories * slab_bytes_ + state_.offset +
                       i % kMemories * state_.memory_bytes;
      std::vector<char> bytes(state_.memory_bytes);
      cudaMemcpy(bytes.data(), at, bytes.size(), cudaMemcpyDeviceToHost);
      for (int64_t d = 0; d < StateElements(); ++d) {
        Compare(Stored(bytes.data(), d), host_[i][d], error, largest);
      }
    }
    const double allowed = dtype_ == DType::kF32 ? 3e-6 : dtype_ == DType::kF16 ? 4e-3 : 4e-2;
    const bool good = out_error_ <= allowed * out_largest_ && error <= allowed * largest;
    std::printf("%s %d/%d heads, %3d keys, %3d values, %s, tile %2d: output %.1e, matrix %.1e %s\n",
                good ? "ok  " : "BAD ", dims_.heads, dims_.value_heads, dims_.key_dim,
                dims_.value_dim, Name(dtype_), tile_, out_error_ / out_largest_, error / largest,
                device_.ok() ? "" : device_.TakeError().c_str());
    return good;
  }

 private:
  int64_t StateBytes() const {
    return int64_t{dims_.value_heads} * dims_.value_dim * StateRowPitch(dtype_, dims_.key_dim) *
           SizeOf(dtype_);
  }
  // Element d of a matrix.
  double Stored(const char* bytes, int64_t d) const {
    if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(bytes)[d];
    if (dtype_ == DType::kF16) return __half2float(reinterpret_cast<const __half*>(bytes)[d]);
    const int64_t pitch = StateRowPitch(dtype_, dims_.key_dim);
    const char* row = bytes + d / dims_.key_dim * pitch;
    float scale;
    std::memcpy(&scale, row + pitch - sizeof(scale), sizeof(scale));
    return double{scale} * static_cast<signed char>(row[d % dims_.key_dim]);
  }
  int64_t StateElements() const {
    return int64_t{dims_.value_heads} * dims_.value_dim * dims_.key_dim;
  }
  static void Compare(double got, double want, double& error, double& largest) {
    const double difference = std::abs(got - want);
    error = difference <= error ? error : difference;  // NaN stays
    largest = std::max(largest, std::abs(want));
  }
  int Draw(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  double Uniform() { return random_() * 0x1p-32; }
  std::vector<float> Floats(int64_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(2 * Uniform() - 1);
    return values;
  }
  template <typename T>
  TensorView Upload(const std::vector<T>& values, DType dtype, Shape shape) {
    void* data = nullptr;
    cudaMalloc(&data, std::max<size_t>(16, values.size() * sizeof(T)));
    cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    temporary_.push_back(data);
    return {data, dtype, shape};
  }

  void Step() {
    std::vector<int> offsets = {0}, slots, memories, fresh;
    const int longest = Draw(4) == 0 ? 6 : 1;
    for (int memory = 0; memory < kMemories; ++memory) {
      for (int slot = 0; slot < kSlots; ++slot) {
        const int length = Draw(3) == 0 ? 0 : 1 + Draw(longest);
        const bool padding = Draw(10) == 0;
        auto& host = host_[slot * kMemories + memory];
        const bool is_fresh = !padding && length > 0 && host.empty();
        if (is_fresh) {
          host.assign(StateElements(), 0.0);
          cudaMemset(slabs_ + slot * slab_bytes_ + written_.offset + memory, 1, 1);
        }
        offsets.push_back(offsets.back() + length);
        slots.push_back(padding ? -1 : slot);
        memories.push_back(memory);
        fresh.push_back(is_fresh);
      }
    }
    const int n = offsets.back(), count = static_cast<int>(slots.size());
    const Dims& d = dims_;
    std::vector<float> q = Floats(int64_t{n} * d.heads * d.key_dim), k = q,
                       v = Floats(int64_t{n} * d.value_heads * d.value_dim),
                       g = Floats(int64_t{n} * d.value_heads), beta = g;
    k = Floats(k.size());
    for (size_t i = 0; i < k.size(); i += d.key_dim) {
      double sum = 1e-6;
      for (int j = 0; j < d.key_dim; ++j) sum += k[i + j] * k[i + j];
      for (int j = 0; j < d.key_dim; ++j) k[i + j] /= std::sqrt(sum);
    }
    for (float& x : g) x = -std::exp(static_cast<float>(-4.5 + 6.5 * x));
    for (float& x : beta) x = 0.5f + 0.5f * std::abs(x);

    MatrixMemoryArgs args;
    args.q = Upload(q, DType::kF32, {n, d.heads, d.key_dim});
    args.k = Upload(k, DType::kF32, {n, d.heads, d.key_dim});
    args.v = Upload(v, DType::kF32, {n, d.value_heads, d.value_dim});
    args.log_decay = Upload(g, DType::kF32, {n, d.value_heads});
    args.beta = Upload(beta, DType::kF32, {n, d.value_heads});
    args.segments = {.count = count,
                     .offsets = Upload(offsets, DType::kI32, {count + 1}),
                     .slots = Upload(slots, DType::kI32, {count}),
                     .memories = Upload(memories, DType::kI32, {count}),
                     .fresh = Upload(fresh, DType::kI32, {count}),
                     .longest = longest};
    args.state = state_;
    args.pending = pending_;
    args.out = args.v;
    Problem p = cuda::matrix_memory::MakeProblem(args);
    p.fold_all = Draw(4) == 0;
    if (tile_ < 0) {
      p.task = Task::kAnyEntries;
      LaunchGeneral(device_, p, dtype_);
    } else {
      p.task = Task::kTokens;
      if (Draw(2) == 0) {  // as before chunks, then one kernel or the other
        p.task = Task::kSettleSegments;
        LaunchTokens(device_, p, dtype_);
        p.task = Task::kTokens;
        LaunchGeneral(device_, p, dtype_);
      } else {
        LaunchTokens(device_, p, dtype_);
      }
      p.task = Task::kDecode;
      LaunchDecode(device_, p, dtype_, {static_cast<DecodeTile>(tile_), p.fold_all});
    }
    std::vector<float> out(v.size());
    cudaStreamSynchronize(device_.stream());
    device_.Check(cudaMemcpy(out.data(), args.out.data, 4 * out.size(), cudaMemcpyDeviceToHost),
                  "outputs");
    for (void* data : temporary_) cudaFree(data);
    temporary_.clear();

    for (int s = 0; s < count; ++s) {
      if (slots[s] < 0) continue;
      for (int e = offsets[s]; e < offsets[s + 1]; ++e) {
        for (int head = 0; head < d.value_heads; ++head) {
          const int64_t key = (int64_t{e} * d.heads + head / (d.value_heads / d.heads)) * d.key_dim;
          const int64_t at = int64_t{e} * d.value_heads + head;
          for (int row = 0; row < d.value_dim; ++row) {
            double* x = host_[slots[s] * kMemories + memories[s]].data() +
                        (int64_t{head} * d.value_dim + row) * d.key_dim;
            double recall = 0, read = 0;
            const double decay = std::exp(double{g[at]});
            for (int i = 0; i < d.key_dim; ++i) recall += (x[i] *= decay) * k[key + i];
            const double u = beta[at] * (v[at * d.value_dim + row] - recall);
            for (int i = 0; i < d.key_dim; ++i) read += (x[i] += u * k[key + i]) * q[key + i];
            Compare(out[at * d.value_dim + row], read, out_error_, out_largest_);
          }
        }
      }
    }
  }

  void Settle() {
    std::vector<int> slots;
    for (int slot = 0; slot < kSlots; ++slot) slots.push_back(slot);
    slots[1] = -1;
    slots.push_back(1);
    const TensorView list = Upload(slots, DType::kI32, {static_cast<int64_t>(slots.size())});
    cuda::matrix_memory::SettleMemories(device_, {.slots = list,
                                                  .memories = kMemories,
                                                  .written = written_,
                                                  .heads = dims_.heads,
                                                  .key_dim = dims_.key_dim,
                                                  .value_heads = dims_.value_heads,
                                                  .value_dim = dims_.value_dim,
                                                  .state = state_,
                                                  .pending = pending_});
    device_.Check(cudaStreamSynchronize(device_.stream()), "settle");
  }

  Device& device_;
  const Dims dims_;
  const DType dtype_;
  const int tile_;  // < 0: the general kernel
  std::mt19937 random_{7};
  int64_t slab_bytes_ = 64;
  char* slabs_ = nullptr;
  StateView written_, state_;
  PendingWrites pending_;
  std::vector<std::vector<double>> host_;
  std::vector<void*> temporary_;
  double out_error_ = 0, out_largest_ = 0;
};

}  // namespace

bool CheckDeltaRule(Device& device) {
  bool good = true;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    for (const Dims dims :
         {Dims{1, 1, 256, 256}, Dims{2, 4, 128, 80}, Dims{1, 3, 64, 104}, Dims{1, 3, 64, 100}}) {
      for (int tile = -1; tile < cuda::matrix_memory::decode::kDecodeTiles; ++tile) {
        const bool halves = PendingDType(dtype) == DType::kF16;  // see StreamFits()
        if (tile == static_cast<int>(DecodeTile::kStream) && halves && dims.value_dim % 8 != 0) {
          continue;
        }
        good &= Check(device, dims, dtype, tile).Run();
      }
    }
    for (const Dims dims : {Dims{1, 1, 1, 1}, Dims{1, 2, 3, 5}, Dims{2, 4, 20, 24},
                            Dims{1, 1, 100, 50}, Dims{1, 1, 96, 300}}) {
      good &= Check(device, dims, dtype, -1).Run();
    }
  }
  return good;
}

}  // namespace mneme
