// Sixteen floats at a time: the dozen operations the hot loops need, for AVX-512 (one register),
// AVX2 (two) and any other processor (plain vectors of four). One vocabulary, so that a kernel is
// written once and compiled once per instruction set, in namespace mneme::<isa>.
//
// Included by the sources of mneme_isa_sources() only. Within one instruction set a lane's result
// depends on that lane's inputs alone, and the sum over lanes (Sum) always adds in the
// same tree: what a kernel computes for an output never depends on where in a vector it fell.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/float16.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef MNEME_ISA
#error "compile this file through mneme_isa_sources()"
#endif

#define MNEME_INLINE inline __attribute__((always_inline))
#define MNEME_UNROLL _Pragma("GCC unroll 16")

namespace mneme::MNEME_ISA {

constexpr int kLanes = 16;

MNEME_INLINE uint32_t BitsFromFloat(float value) { return std::bit_cast<uint32_t>(value); }

#if defined(__AVX512F__)

struct Vec {
  __m512 v;
};

MNEME_INLINE __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

MNEME_INLINE Vec Zero() { return {_mm512_setzero_ps()}; }
MNEME_INLINE Vec Set1(float x) { return {_mm512_set1_ps(x)}; }
MNEME_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
MNEME_INLINE void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
// The first n lanes, 0 <= n <= 16; the others read as zero and are not written.
MNEME_INLINE Vec LoadFirst(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n), p)};
}
MNEME_INLINE void StoreFirst(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), a.v);
}
MNEME_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
MNEME_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
MNEME_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
MNEME_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c and c - a * b, rounded once where the processor can, else twice.
MNEME_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
MNEME_INLINE Vec NegMulAdd(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// *sum = a * b + *sum. Written out because the compiler, free to choose which operand to overwrite,
// wears out the registers of a large block of sums.
MNEME_INLINE void Accumulate(Vec* sum, Vec a, Vec b) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum->v) : "v"(a.v), "v"(b.v));
}
#if defined(__AVX512BF16__)
// The same for sixteen pairs of bf16: sum += a.even * b.even + a.odd * b.odd.
MNEME_INLINE void AccumulatePairs(Vec* sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum->v) : "v"(a), "v"(b));
}
// Two vectors as 32 bf16, rounded to nearest even.
MNEME_INLINE void StoreBF16(uint16_t* p, Vec low, Vec high) {
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v)));
}
#endif
// b where a is NaN.
MNEME_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
MNEME_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
// yes where a < b, else no.
MNEME_INLINE Vec WhereLess(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
MNEME_INLINE Vec Abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
MNEME_INLINE Vec Round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for integral n.
MNEME_INLINE Vec Scale(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// floor(log2 a) of a positive normal number.
MNEME_INLINE Vec Exponent(Vec a) { return {_mm512_getexp_ps(a.v)}; }
MNEME_INLINE Vec RoundToBF16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i kept = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(kept, is_nan, _mm512_set1_epi32(0x7fc00000)))};
}

// The first or the second of each of sixteen pairs of 16-bit floats.
MNEME_INLINE Vec LoadEvenBF16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
MNEME_INLINE Vec LoadOddBF16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
MNEME_INLINE Vec LoadEvenF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(p)))};
}
MNEME_INLINE Vec LoadOddF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(p), 16)))};
}
MNEME_INLINE Vec LoadBF16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
MNEME_INLINE Vec LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

MNEME_INLINE __m256 FoldHalves(Vec a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__)

struct Vec {
  __m256 lo, hi;
};

MNEME_INLINE __m256i FirstLanes8(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

MNEME_INLINE Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MNEME_INLINE Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MNEME_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MNEME_INLINE void Store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
MNEME_INLINE Vec LoadFirst(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstLanes8(n)), _mm256_maskload_ps(p + 8, FirstLanes8(n - 8))};
}
MNEME_INLINE void StoreFirst(float* p, Vec a, int n) {
  _mm256_maskstore_ps(p, FirstLanes8(n), a.lo);
  _mm256_maskstore_ps(p + 8, FirstLanes8(n - 8), a.hi);
}
MNEME_INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec MulAdd(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MNEME_INLINE Vec NegMulAdd(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
MNEME_INLINE void Accumulate(Vec* sum, Vec a, Vec b) { *sum = MulAdd(a, b, *sum); }
MNEME_INLINE Vec Max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec Min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
MNEME_INLINE Vec WhereLess(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
MNEME_INLINE Vec Abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
MNEME_INLINE Vec Round(Vec a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
// 2^n is applied in two factors, each a normal number for |n| <= 252.
MNEME_INLINE __m256 Scale8(__m256 a, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 y = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(a, x), y);
}
MNEME_INLINE Vec Scale(Vec a, Vec n) { return {Scale8(a.lo, n.lo), Scale8(a.hi, n.hi)}; }
MNEME_INLINE __m256 Exponent8(__m256 a) {
  const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
MNEME_INLINE Vec Exponent(Vec a) { return {Exponent8(a.lo), Exponent8(a.hi)}; }
MNEME_INLINE __m256 RoundToBF16x8(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i kept = _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(_mm256_castsi256_ps(kept), nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
MNEME_INLINE Vec RoundToBF16(Vec a) { return {RoundToBF16x8(a.lo), RoundToBF16x8(a.hi)}; }

MNEME_INLINE __m256i Load256(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
MNEME_INLINE Vec LoadEvenBF16(const uint16_t* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(Load256(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(Load256(p + 16), 16))};
}
MNEME_INLINE Vec LoadOddBF16(const uint16_t* p) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(Load256(p), high)),
          _mm256_castsi256_ps(_mm256_and_si256(Load256(p + 16), high))};
}
// Eight 32-bit lanes below 2^16, narrowed and widened to f32.
MNEME_INLINE __m256 WidenF16x8(__m256i halves) {
  const __m256i packed = _mm256_packus_epi32(halves, halves);
  const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(ordered));
}
MNEME_INLINE Vec LoadEvenF16(const uint16_t* p) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  return {WidenF16x8(_mm256_and_si256(Load256(p), low)),
          WidenF16x8(_mm256_and_si256(Load256(p + 16), low))};
}
MNEME_INLINE Vec LoadOddF16(const uint16_t* p) {
  return {WidenF16x8(_mm256_srli_epi32(Load256(p), 16)),
          WidenF16x8(_mm256_srli_epi32(Load256(p + 16), 16))};
}
MNEME_INLINE Vec LoadBF16(const uint16_t* p) {
  const __m256i bits = Load256(p);
  const __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
MNEME_INLINE Vec LoadF16(const uint16_t* p) {
  const __m256i bits = Load256(p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}

MNEME_INLINE __m256 FoldHalves(Vec a) { return _mm256_add_ps(a.lo, a.hi); }

#else  // any processor, no fused multiply-add

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct Vec {
  Float4 q[4];
};

template <typename F>
MNEME_INLINE Vec MakeVec(F quarter) {
  return {{quarter(0), quarter(1), quarter(2), quarter(3)}};
}

MNEME_INLINE Vec Set1(float x) {
  return MakeVec([&](int) { return Float4{x, x, x, x}; });
}
MNEME_INLINE Vec Zero() { return Set1(0.0f); }
MNEME_INLINE Vec Load(const float* p) {
  Vec a;
  std::memcpy(&a, p, sizeof(a));
  return a;
}
MNEME_INLINE void Store(float* p, Vec a) { std::memcpy(p, &a, sizeof(a)); }
MNEME_INLINE Vec LoadFirst(const float* p, int n) {
  Vec a = Zero();
  std::memcpy(&a, p, n * sizeof(float));
  return a;
}
MNEME_INLINE void StoreFirst(float* p, Vec a, int n) { std::memcpy(p, &a, n * sizeof(float)); }
MNEME_INLINE Vec operator+(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] + b.q[i]; });
}
MNEME_INLINE Vec operator-(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] - b.q[i]; });
}
MNEME_INLINE Vec operator*(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] * b.q[i]; });
}
MNEME_INLINE Vec operator/(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] / b.q[i]; });
}
MNEME_INLINE Vec MulAdd(Vec a, Vec b, Vec c) { return a * b + c; }
MNEME_INLINE Vec NegMulAdd(Vec a, Vec b, Vec c) { return c - a * b; }
MNEME_INLINE void Accumulate(Vec* sum, Vec a, Vec b) { *sum = MulAdd(a, b, *sum); }
template <typename F>
MNEME_INLINE Vec MapLanes(Vec a, F f) {
  float x[kLanes];
  Store(x, a);
  for (float& value : x) value = f(value);
  return Load(x);
}
MNEME_INLINE Vec Max(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] > b.q[i] ? a.q[i] : b.q[i]; });
}
MNEME_INLINE Vec Min(Vec a, Vec b) {
  return MakeVec([&](int i) { return a.q[i] < b.q[i] ? a.q[i] : b.q[i]; });
}
MNEME_INLINE Vec WhereLess(Vec a, Vec b, Vec yes, Vec no) {
  return MakeVec([&](int i) { return a.q[i] < b.q[i] ? yes.q[i] : no.q[i]; });
}
MNEME_INLINE Vec Abs(Vec a) {
  return MapLanes(a, [](float x) { return __builtin_fabsf(x); });
}
// Adding 1.5 * 2^23 leaves no room for a fraction; right for |a| < 2^22.
MNEME_INLINE Vec Round(Vec a) { return (a + Set1(0x1.8p23f)) - Set1(0x1.8p23f); }
MNEME_INLINE Vec Scale(Vec a, Vec n) {
  return MakeVec([&](int i) {
    const Int4 whole = __builtin_convertvector(n.q[i], Int4);
    const Int4 half = whole >> 1;
    const Int4 x = (half + 127) << 23, y = (whole - half + 127) << 23;
    return a.q[i] * std::bit_cast<Float4>(x) * std::bit_cast<Float4>(y);
  });
}
MNEME_INLINE Vec Exponent(Vec a) {
  return MakeVec([&](int i) {
    return __builtin_convertvector((std::bit_cast<Int4>(a.q[i]) >> 23) - 127, Float4);
  });
}
MNEME_INLINE Vec RoundToBF16(Vec a) {
  return MapLanes(a, [](float x) { return mneme::RoundToBF16(x); });
}
MNEME_INLINE Int4 LoadPairs(const uint16_t* p) {
  Int4 pairs;
  std::memcpy(&pairs, p, sizeof(pairs));
  return pairs;
}
MNEME_INLINE Vec LoadEvenBF16(const uint16_t* p) {
  return MakeVec([&](int i) { return std::bit_cast<Float4>(LoadPairs(p + 8 * i) << 16); });
}
MNEME_INLINE Vec LoadOddBF16(const uint16_t* p) {
  return MakeVec([&](int i) {
    return std::bit_cast<Float4>(LoadPairs(p + 8 * i) & static_cast<int32_t>(0xffff0000));
  });
}
MNEME_INLINE Vec LoadEvenF16(const uint16_t* p) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = F32FromF16(p[2 * i]);
  return Load(x);
}
MNEME_INLINE Vec LoadOddF16(const uint16_t* p) { return LoadEvenF16(p + 1); }
MNEME_INLINE Vec LoadBF16(const uint16_t* p) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = F32FromBF16(p[i]);
  return Load(x);
}
MNEME_INLINE Vec LoadF16(const uint16_t* p) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = F32FromF16(p[i]);
  return Load(x);
}

#endif

// Sum over the lanes: lane i meets i + 8, then i + 4, then i + 2, then i + 1.
MNEME_INLINE float Sum(Vec a) {
#if defined(__AVX2__)
  const __m256 eight = FoldHalves(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  const Float4 four = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

MNEME_INLINE float MaxLane(Vec a) {
  float x[kLanes];
  Store(x, a);
  float best = x[0];
  for (const float value : x) best = value > best ? value : best;
  return best;
}

// Asks for the cache line at p, as far in as the second-level cache: the first is small, and the
// requests it can have outstanding are few. A hint, harmless past the end of an array.
MNEME_INLINE void Prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace mneme::MNEME_ISA
