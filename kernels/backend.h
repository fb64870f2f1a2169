// A device: its memory, copies, weight layout, and kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernels.h"
#include "kernels/tensor_view.h"

namespace mneme {

struct BackendOptions {
  // kF32: exact fp32 arithmetic. kBF16: activations may be rounded to 16 bits before a product with
  // 16-bit weights (docs/numerics.md has the bound); sums stay fp32. Unset: what suits the device,
  // kBF16 for CUDA and kF32 for others.
  std::optional<DType> compute_dtype;
  // The dtype of matrix memories: kF32, or on CUDA also kF16 or kI8 (state_row.h). The reference
  // keeps kF64 whatever this says.
  DType state_dtype = DType::kF32;
  int threads = 0;           // CPU workers, the caller included; 0: all cores
  std::string isa = "auto";  // "auto", "baseline", "avx2", "avx512", "avx512_bf16", "amx"
};

// How a backend wants the state of a session stored.
struct StateFormat {
  DType memory_dtype = DType::kF32;  // matrix memories
  DType window_dtype = DType::kF32;  // convolution windows
  // The same, where q, k and v are projected by bf16 weights. kBF16: inputs of convolutions are
  // rounded to it.
  DType bf16_window_dtype = DType::kF32;
  int pending_writes = 0;  // that a memory can hold back (PendingWrites::capacity); 0: none
  DType context_dtype = DType::kF32;  // keys and values of attention
};

// Bytes [offset, offset + bytes) of a block of memory, if its byte `flag` is not 0; without a flag,
// in any case.
struct GuardedPiece {
  static constexpr int64_t kAlways = -1;
  int64_t offset = 0, bytes = 0;
  int64_t flag = kAlways;  // bytes from the start of the block
};

// A piece of a transfer: one side is memory of the device, the other one pinned memory.
struct TransferPiece {
  void* dst = nullptr;
  const void* src = nullptr;
  int64_t bytes = 0;
};

enum class TransferDirection : uint8_t { kToHost, kToDevice };

// Copies that go on beside kernels. Neither side may be written meanwhile, nor the one be read that
// is written to.
class Transfer {
 public:
  virtual ~Transfer() = default;  // waits until it is done
  virtual bool done() const = 0;
};

// One thread drives a backend (the engine's loop); only Allocate and the destructor of a Buffer may
// be called from another.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name() const = 0;   // "cpu", "cuda", "reference"
  virtual std::string description() const = 0;  // e.g. "cpu avx512_bf16, 2 threads"
  virtual DType activation_dtype() const = 0;   // f64 for the reference, else f32
  virtual StateFormat state_format() const = 0;
  virtual DType compute_dtype() const = 0;  // BackendOptions::compute_dtype
  // The type in which x of a Linear with these weights is best written, if not activation_dtype():
  // Linear then converts nothing, and RmsNorm, SwiGlu and GatedRmsNorm can write it. `rows`: of x.
  virtual DType product_dtype(const PackedMatrix& /*weights*/, int64_t /*rows*/) const {
    return activation_dtype();
  }
  // The type in which a Linear with these weights best writes y for operations that take it, if
  // not activation_dtype(): where x has `rows` rows of product_dtype.
  virtual DType output_dtype(std::span<const PackedMatrix> /*weights*/, int64_t /*rows*/) const {
    return activation_dtype();
  }
  // The same in a step of decode rows, where no product of the call has groups: for those who round
  // what they take anyway.
  virtual DType step_output_dtype(const PackedMatrix& /*weights*/, int64_t /*rows*/) const {
    return activation_dtype();
  }

  // Uninitialised memory, 64-byte aligned or better. RESOURCE_EXHAUSTED names the bytes asked for.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* data) = 0;
  // Memory that Allocate could still give.
  virtual absl::StatusOr<int64_t> AvailableBytes() const = 0;
  // How much of that is better left for other uses: of other processes, of libraries.
  virtual int64_t ReserveBytes(int64_t available) const {
    return std::max(int64_t{256} << 20, available / 10);
  }
  // Tokens of a step from which on a prompt is read at nearly full speed.
  virtual int preferred_step_tokens() const { return 512; }
  // How much longer a step may take because prompts are read in it, for the 99th percentile of the
  // time between tokens to stay below three times what it is undisturbed: less where like steps
  // scatter.
  virtual double preferred_decode_slowdown() const { return 2.7; }

  // Memory of the host from which the device can copy by itself; Free takes it, too.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) { return Allocate(bytes); }

  // Whether kernels and copies are queued, and calls return before the work is done.
  virtual bool asynchronous() const { return false; }

  // Ordered with kernels. Host sources may be reused when the call returns; CopyToHost blocks.
  virtual void CopyFromHost(void* dst, const void* src, int64_t bytes) = 0;
  virtual void CopyToHost(void* dst, const void* src, int64_t bytes) = 0;
  // From pinned memory, which has to stay as it is until the copy is done: it reads what is there
  // when the work before it is done, as part of a graph too. For the few bytes of a step.
  virtual void CopyFromPinned(void* dst, const void* src, int64_t bytes) {
    CopyFromHost(dst, src, bytes);
  }
  // To pinned memory, which is not to be read until work queued behind the copy is done.
  virtual void CopyToPinned(void* dst, const void* src, int64_t bytes) {
    CopyToHost(dst, src, bytes);
  }
  virtual void Copy(void* dst, const void* src, int64_t bytes) = 0;
  // `count` pieces of `bytes`, which begin so many bytes apart.
  virtual void CopyPieces(void* dst, int64_t dst_stride, const void* src, int64_t src_stride,
                          int64_t bytes, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Copy(static_cast<std::byte*>(dst) + i * dst_stride,
           static_cast<const std::byte*>(src) + i * src_stride, bytes);
    }
  }
  // Pieces of the block at `src`, which keep their places in that at `dst`: those whose flags are
  // set in `src`. Both blocks are aligned to 64 bytes. Returns the bytes that were copied, where
  // the host can know; here it reads the device's memory.
  //   pieces  [n] GuardedPiece, in backend memory; they do not overlap
  virtual std::optional<int64_t> CopyGuarded(void* dst, const void* src, const GuardedPiece* pieces,
                                             int64_t count) {
    int64_t copied = 0;
    for (const GuardedPiece& piece : std::span(pieces, static_cast<size_t>(count))) {
      const auto* from = static_cast<const std::byte*>(src);
      if (piece.flag != GuardedPiece::kAlways && from[piece.flag] == std::byte{0}) continue;
      Copy(static_cast<std::byte*>(dst) + piece.offset, from + piece.offset, piece.bytes);
      copied += piece.bytes;
    }
    return copied;
  }
  // Copies that begin when the work queued so far is done; work queued later does not wait for
  // them. Once they are done, `on_done` is called, maybe by another thread and before this returns.
  // A failure is an error of Synchronize().
  virtual std::unique_ptr<Transfer> BeginTransfer(std::span<const TransferPiece> pieces,
                                                  TransferDirection direction,
                                                  std::function<void()> on_done);
  virtual void Zero(void* dst, int64_t bytes) = 0;
  // Waits for all work; reports errors of asynchronous kernels.
  virtual absl::Status Synchronize() = 0;
  // Reports the errors that are known by now, for after an operation that waited by itself.
  virtual absl::Status TakeStatus() { return Synchronize(); }

  // Bytes PackMatrix needs at `dst` (backend memory) for a matrix of this shape and dtype.
  virtual int64_t PackedBytes(DType dtype, int out_features, int in_features) const = 0;
  // Lays out `matrix`, host memory, [out_features, in_features] f32, bf16 or f16, at `dst`.
  virtual PackedMatrix PackMatrix(const TensorView& matrix, void* dst) = 0;

  virtual Kernels& kernels() = 0;

  // Records what `work` launches instead of running it, for Replay. The work must not synchronise,
  // and addresses and sizes stay as they are. UNIMPLEMENTED where can_capture() is false.
  class Graph {
   public:
    virtual ~Graph() = default;
    virtual void Replay() = 0;
    virtual int64_t nodes() const = 0;  // kernels and copies
  };
  virtual bool can_capture() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(std::function<void()> /*work*/) {
    return absl::UnimplementedError("this backend records no graphs");
  }
};

// `device`: "cpu", "cuda" or "auto" (CUDA if built in and a device is present, else the CPU).
// INVALID_ARGUMENT for an unknown name or ISA, FAILED_PRECONDITION where the host lacks it.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view device,
                                                     const BackendOptions& options);

}  // namespace mneme
