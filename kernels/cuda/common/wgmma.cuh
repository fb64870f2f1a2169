// Hopper's asynchronous tensor-core products of a warpgroup, both operands in shared memory.
// sm_90a.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mneme::cuda {

// A matrix of 16-bit numbers in shared memory: rows of 64 (128 bytes), the first at a multiple of
// 1024; 16-byte piece i of row r lies where piece i ^ (r % 8) would.
__device__ inline uint64_t DescribeMatrix(uint32_t shared) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzled128 = 1;
  return (shared & 0x3ffff) >> 4 | uint64_t{1} << 16 | kEightRows << 32 | kSwizzled128 << 62;
}
// The same sixteen columns further right.
constexpr uint64_t kSixteenColumns = 32 >> 4;
// The same for MultiplyColumns(): of matrices of more than 64 columns, the next 64 lie
// `group_bytes` further on.
__device__ inline uint64_t DescribeColumns(uint32_t shared, uint32_t group_bytes) {
  constexpr uint64_t kOne = uint64_t{1} << 16;
  return DescribeMatrix(shared) - kOne + (uint64_t{group_bytes >> 4} << 16);
}
// The same sixteen rows further down.
constexpr uint64_t kSixteenRows = 16 * 128 >> 4;

// Before the first product of a warpgroup, and after its sums were touched otherwise.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Makes what this thread has written to shared memory visible to products of all warps, after the
// next barrier; and what others have written before the last one, to those that it begins.
__device__ inline void PublishToProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// d += a b^T: a of 64 rows, b of kN, 16 columns of both. Warp w of the warpgroup has rows 16 w..,
// columns as MultiplyAdd of common/mma.cuh, d[4 j ..] being columns 8 j...
template <int kN>
struct WarpgroupProduct;

// clang-format off
#define MNEME_SUMS8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define MNEME_SUMS16(d, i) MNEME_SUMS8(d, i), MNEME_SUMS8(d, i + 8)
#define MNEME_SUMS32(d, i) MNEME_SUMS16(d, i), MNEME_SUMS16(d, i + 16)
#define MNEME_SUMS40(d, i) MNEME_SUMS32(d, i), MNEME_SUMS8(d, i + 32)
#define MNEME_SUMS48(d, i) MNEME_SUMS32(d, i), MNEME_SUMS16(d, i + 32)
#define MNEME_SUMS64(d, i) MNEME_SUMS32(d, i), MNEME_SUMS32(d, i + 32)
#define MNEME_SUMS72(d, i) MNEME_SUMS64(d, i), MNEME_SUMS8(d, i + 64)
#define MNEME_SUMS128(d, i) MNEME_SUMS64(d, i), MNEME_SUMS64(d, i + 64)
#define MNEME_NAMES8 \
  "%0, %1, %2, %3, %4, %5, %6, %7"
#define MNEME_NAMES16 MNEME_NAMES8 ", " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define MNEME_NAMES32 MNEME_NAMES16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MNEME_NAMES40 MNEME_NAMES32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define MNEME_NAMES48 MNEME_NAMES32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MNEME_NAMES64 MNEME_NAMES32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MNEME_NAMES72 MNEME_NAMES64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71"
#define MNEME_NAMES128 MNEME_NAMES64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MNEME_WARPGROUP_PRODUCT(N, SUMS, A, B, C, DTYPE, NAME)                                 \
  static __device__ inline void Add(float (&d)[SUMS], uint64_t a, uint64_t b, DTYPE) {         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #C ", 0; "                                  \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" MNEME_NAMES##SUMS   \
      "}, %" #A ", %" #B ", p, 1, 1, 0, 0; }"                                                  \
      : MNEME_SUMS##SUMS(d, 0) : "l"(a), "l"(b), "r"(1));                                      \
  }
#define MNEME_WARPGROUP_PRODUCTS(N, SUMS, A, B, C)                                             \
  template <>                                                                                  \
  struct WarpgroupProduct<N> {                                                                 \
    MNEME_WARPGROUP_PRODUCT(N, SUMS, A, B, C, __nv_bfloat16, "bf16")                           \
    MNEME_WARPGROUP_PRODUCT(N, SUMS, A, B, C, __half, "f16")                                   \
  };
MNEME_WARPGROUP_PRODUCTS(16, 8, 8, 9, 10)
MNEME_WARPGROUP_PRODUCTS(32, 16, 16, 17, 18)
MNEME_WARPGROUP_PRODUCTS(64, 32, 32, 33, 34)
MNEME_WARPGROUP_PRODUCTS(80, 40, 40, 41, 42)
MNEME_WARPGROUP_PRODUCTS(96, 48, 48, 49, 50)
MNEME_WARPGROUP_PRODUCTS(128, 64, 64, 65, 66)
MNEME_WARPGROUP_PRODUCTS(144, 72, 72, 73, 74)
MNEME_WARPGROUP_PRODUCTS(256, 128, 128, 129, 130)
// Products of 16 columns of bf16 that the warpgroup has in registers, as MultiplyAdd's left side: with
// the rows of b (sixteen columns of them), and with its columns (sixteen rows, of DescribeColumns()).
// `adds`: to what is in the sums, which otherwise are written only.
#define MNEME_REGISTER_PRODUCT(NAME, N, SUMS, A0, A1, A2, A3, B, C, TRANSPOSED)                 \
  __device__ inline void NAME(float (&sums)[N / 8][4], const uint32_t (&a)[4], uint64_t b,      \
                              bool adds) {                                                      \
    float (&d)[SUMS] = reinterpret_cast<float (&)[SUMS]>(sums);                                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #C ", 0; "                                  \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" MNEME_NAMES##SUMS            \
      "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, " #TRANSPOSED "; }"       \
      : MNEME_SUMS##SUMS(d, 0)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));       \
  }
MNEME_REGISTER_PRODUCT(MultiplyRows, 64, 32, 32, 33, 34, 35, 36, 37, 0)
MNEME_REGISTER_PRODUCT(MultiplyRows, 128, 64, 64, 65, 66, 67, 68, 69, 0)
MNEME_REGISTER_PRODUCT(MultiplyColumns, 64, 32, 32, 33, 34, 35, 36, 37, 1)
MNEME_REGISTER_PRODUCT(MultiplyColumns, 128, 64, 64, 65, 66, 67, 68, 69, 1)
#undef MNEME_REGISTER_PRODUCT
#undef MNEME_WARPGROUP_PRODUCTS
#undef MNEME_WARPGROUP_PRODUCT
#undef MNEME_NAMES8
#undef MNEME_SUMS8
#undef MNEME_NAMES16
#undef MNEME_SUMS16
#undef MNEME_NAMES32
#undef MNEME_SUMS32
#undef MNEME_NAMES64
#undef MNEME_SUMS64
#undef MNEME_NAMES40
#undef MNEME_SUMS40
#undef MNEME_NAMES48
#undef MNEME_SUMS48
#undef MNEME_NAMES72
#undef MNEME_SUMS72
#undef MNEME_NAMES128
#undef MNEME_SUMS128
// clang-format on

}  // namespace mneme::cuda
