// Tensor-core products of f16 or bf16 tiles in shared memory with f32 sums, for memories in chunks:
// by mma.sync on any GPU, by wgmma on Hopper. `Element` is the type of both operands' elements.
//
// Fragments. The 16 x 16 left operand of a warp has 4 registers, its 16 x 8 n sums have 4 n floats;
// lane l owns, of rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next of every 8. The sums of
// one product thus have the layout of the next one's left operand: see PackSums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/device_utils.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/matrix_memory/chunked/plan.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MNEME_HOPPER_MMA 1
#endif

namespace mneme::cuda::matrix_memory::chunked {

// Byte offset of 16-byte piece `piece` (0..7) of row `row` within a tile.
__device__ inline uint32_t TileOffset(int row, int piece) {
  return row * kTileRowBytes + ((piece ^ (row & 7)) << 4);
}

__device__ inline uint32_t PackHalves(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <typename Element>
__device__ inline uint32_t PackPair(float low, float high) {
  if constexpr (std::is_same_v<Element, __half>) return PackHalves(low, high);
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline void LoadMatrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void LoadMatricesTransposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// sums[16 x 8] += a[16 x 16] b[16 x 8]
template <typename Element = __half>
__device__ inline void Mma(float* sums, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define MNEME_MMA(TYPE)                                                               \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<Element, __half>) {
    MNEME_MMA("f16");
  } else {
    MNEME_MMA("bf16");
  }
#undef MNEME_MMA
}

// Left operand: rows row0 .. row0 + 15, columns 16 step .. of a tile.
__device__ inline void LoadLeft(uint32_t tile, int row0, int step, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(tile + TileOffset(row0 + lane % 16, 2 * step + lane / 16), a);
}
// Right operand whose columns are rows n0 .. n0 + 15 of a tile, its rows 16 step .. columns:
// registers 0, 1 for the first 8 columns, 2, 3 for the rest.
__device__ inline void LoadRightOfRows(uint32_t tile, int n0, int step, uint32_t (&b)[4]) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(tile + TileOffset(n0 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2), b);
}
// Right operand whose rows are rows 16 step .. of a tile, its columns n0 .. n0 + 15 of the tile's.
__device__ inline void LoadRightOfColumns(uint32_t tile, int step, int n0, uint32_t (&b)[4]) {
  const int lane = threadIdx.x % 32;
  LoadMatricesTransposed(
      tile + TileOffset(16 * step + lane % 8 + lane / 8 % 2 * 8, n0 / 8 + lane / 16), b);
}

#ifdef MNEME_HOPPER_MMA
#define MNEME_F8(d, i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MNEME_F32(d, i) MNEME_F8(d, i), MNEME_F8(d, i + 8), MNEME_F8(d, i + 16), MNEME_F8(d, i + 24)
#define MNEME_REGISTERS_0_31                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MNEME_REGISTERS_32_63                                                                  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MNEME_REGISTERS_64_95                                                                  \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MNEME_REGISTERS_96_127                                                             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
  "%125, %126, %127"
// One wgmma of 16 columns of both operands; PRODUCT, a macro of a string that names their type.
#define MNEME_OF_ELEMENT(PRODUCT)                  \
  if constexpr (std::is_same_v<Element, __half>) { \
    PRODUCT("f16");                                \
  } else {                                         \
    PRODUCT("bf16");                               \
  }
// clang-format off
#define MNEME_TILES_N64(TYPE)                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE            \
               " {" MNEME_REGISTERS_0_31 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"           \
               : MNEME_F32(sums, 0) : "l"(a_tile), "l"(b) : "memory")
// `TRANSPOSED`: "0" where rows of b are rows of tiles' columns, "1" where they are their rows.
#define MNEME_LEFT_N64(TYPE, TRANSPOSED)                                              \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE            \
               " {" MNEME_REGISTERS_0_31 "}, {%32, %33, %34, %35}, %36, p, 1, 1, "     \
               TRANSPOSED ";\n}\n"                                                    \
               : MNEME_F32(sums, 0)                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define MNEME_LEFT_N128(TYPE, TRANSPOSED)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE           \
               " {" MNEME_REGISTERS_0_31 ", " MNEME_REGISTERS_32_63                   \
               "}, {%64, %65, %66, %67}, %68, p, 1, 1, " TRANSPOSED ";\n}\n"          \
               : MNEME_F32(sums, 0), MNEME_F32(sums, 32)                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define MNEME_LEFT_N256(TYPE, TRANSPOSED)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                            \
               "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE           \
               " {" MNEME_REGISTERS_0_31 ", " MNEME_REGISTERS_32_63                   \
               ", " MNEME_REGISTERS_64_95 ", " MNEME_REGISTERS_96_127                 \
               "}, {%128, %129, %130, %131}, %132, p, 1, 1, " TRANSPOSED ";\n}\n"     \
               : MNEME_F32(sums, 0), MNEME_F32(sums, 32), MNEME_F32(sums, 64),        \
                 MNEME_F32(sums, 96)                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define MNEME_ROWS_N64(TYPE) MNEME_LEFT_N64(TYPE, "0")
#define MNEME_ROWS_N128(TYPE) MNEME_LEFT_N128(TYPE, "0")
#define MNEME_COLUMNS_N64(TYPE) MNEME_LEFT_N64(TYPE, "1")
#define MNEME_COLUMNS_N128(TYPE) MNEME_LEFT_N128(TYPE, "1")
#define MNEME_COLUMNS_N256(TYPE) MNEME_LEFT_N256(TYPE, "1")
// clang-format on
#endif

// Tiles in shared memory as right operands; `tile_bytes` lie between those of a product that takes
// several side by side.
struct RightTiles {
  __device__ RightTiles(const void* tiles, uint32_t tile_bytes)
      : address(SharedAddress(tiles)), tile_bytes(tile_bytes) {
    // For wgmma: 128-byte swizzle, groups of 8 rows follow each other.
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kGroupBytes = kRowGroup * kTileRowBytes;
    descriptor = kSwizzle128 | (kGroupBytes >> 4) << 32 |
                 static_cast<uint64_t>(tile_bytes >> 4) << 16 | ((address & 0x3ffff) >> 4);
  }
  // The descriptor of what lies `bytes` further on.
  __device__ uint64_t DescriptorAt(uint32_t bytes) const { return descriptor + (bytes >> 4); }

  uint32_t address, tile_bytes;
  uint64_t descriptor;
};

// Before the barrier between stores to shared memory and products that read it, and between loads
// from it and a bulk copy to it.
template <bool kWgmma>
__device__ inline void FenceForProducts() {
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) PublishToProducts();
#endif
}
// What a kernel may call in between products that run asynchronously; nothing without wgmma.
template <bool kWgmma>
__device__ inline void BeginProducts() {
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) cuda::BeginProducts();
#endif
}
template <bool kWgmma>
__device__ inline void CommitProducts() {
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) cuda::CommitProducts();
#endif
}
// All products but those of the last kPending commits are done.
template <bool kWgmma, int kPending>
__device__ inline void WaitForProducts() {
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) WaitProducts<kPending>();
#endif
}
// Keeps the compiler from moving uses of sums across the waits.
template <int n>
__device__ inline void HoldSums(float (&sums)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(sums[i]));
}

// sums[16 x 64] += a b for each of the four warps of a group, a being 64 rows of a tile, of which
// warp `block` has its 16, b's columns the rows of another tile, summed over 16 columns of both.
template <bool kWgmma, typename Element = __half>
__device__ inline void MultiplyTiles(float (&sums)[32], const RightTiles& left, uint32_t left_at,
                                     const RightTiles& right, uint32_t right_at, int block,
                                     int step) {
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) {
    const uint64_t a_tile = left.DescriptorAt(left_at + 32 * step);
    const uint64_t b = right.DescriptorAt(right_at + 32 * step);
    MNEME_OF_ELEMENT(MNEME_TILES_N64)
  }
#endif
  if constexpr (!kWgmma) {
    uint32_t a[4];
    LoadLeft(left.address + left_at, 16 * block, step, a);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[4];
      LoadRightOfRows(right.address + right_at, 16 * n, step, b);
      Mma<Element>(sums + 8 * n, a, b[0], b[1]);
      Mma<Element>(sums + 8 * n + 4, a, b[2], b[3]);
    }
  }
}

// sums[16 x 64 kTiles] += a b, b's columns being the rows of kTiles adjacent tiles, one or two,
// that begin at `at`, b's rows their columns 16 step .. 16 step + 15.
template <bool kWgmma, int kTiles = 2, typename Element = __half>
__device__ inline void MultiplyRows(float (&sums)[32 * kTiles], const uint32_t (&a)[4],
                                    const RightTiles& tiles, uint32_t at, int step) {
  static_assert(kTiles == 1 || kTiles == 2);
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) {
    const uint64_t b = tiles.DescriptorAt(at + 32 * step);
    if constexpr (kTiles == 2) {
      MNEME_OF_ELEMENT(MNEME_ROWS_N128)
    } else {
      MNEME_OF_ELEMENT(MNEME_ROWS_N64)
    }
  }
#endif
  if constexpr (!kWgmma) {
#pragma unroll
    for (int n = 0; n < 4 * kTiles; ++n) {
      uint32_t b[4];
      LoadRightOfRows(tiles.address + at, 16 * n, step, b);
      Mma<Element>(sums + 8 * n, a, b[0], b[1]);
      Mma<Element>(sums + 8 * n + 4, a, b[2], b[3]);
    }
  }
}

// sums[16 x 64 kTiles] += a b, b's rows being rows 16 step .. 16 step + 15 of kTiles tiles side by
// side, b's columns their columns.
template <bool kWgmma, int kTiles, typename Element = __half>
__device__ inline void MultiplyColumns(float (&sums)[32 * kTiles], const uint32_t (&a)[4],
                                       const RightTiles& tiles, int step) {
  static_assert(kTiles == 1 || kTiles == 2 || kTiles == 4);
#ifdef MNEME_HOPPER_MMA
  if constexpr (kWgmma) {
    const uint64_t b = tiles.DescriptorAt(16 * step * kTileRowBytes);
    if constexpr (kTiles == 4) {
      MNEME_OF_ELEMENT(MNEME_COLUMNS_N256)
    } else if constexpr (kTiles == 2) {
      MNEME_OF_ELEMENT(MNEME_COLUMNS_N128)
    } else {
      MNEME_OF_ELEMENT(MNEME_COLUMNS_N64)
    }
  }
#endif
  if constexpr (!kWgmma) {
#pragma unroll
    for (int n = 0; n < 4 * kTiles; ++n) {
      uint32_t b[4];
      LoadRightOfColumns(tiles.address + n / 4 * tiles.tile_bytes, step, 16 * (n % 4), b);
      Mma<Element>(sums + 8 * n, a, b[0], b[1]);
      Mma<Element>(sums + 8 * n + 4, a, b[2], b[3]);
    }
  }
}

}  // namespace mneme::cuda::matrix_memory::chunked
