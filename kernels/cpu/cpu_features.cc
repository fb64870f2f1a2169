#include "kernels/cpu/cpu_features.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifdef MNEME_BUILT_avx2
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mneme {
namespace {

#ifdef MNEME_BUILT_avx2

struct Features {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx = false;
};

uint64_t EnabledStates() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// The kernel hands out the 8 KB of tile registers only to processes that ask. It holds for all
// threads started later, too.
bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Features Detect() {
  Features features;
  uint32_t a, b, c, d;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d)) return features;
  constexpr uint32_t kOsxsave = 1u << 27, kFma = 1u << 12, kF16c = 1u << 29;
  if (!(c & kOsxsave) || !(c & kFma) || !(c & kF16c)) return features;
  const uint64_t states = EnabledStates();
  const auto enabled = [&](uint64_t mask) { return (states & mask) == mask; };

  uint32_t b7, c7, d7, a71 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return features;
  const uint32_t subleaves = a;
  if (subleaves >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);

  constexpr uint32_t kAvx2 = 1u << 5;
  constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr uint32_t kAvx512Bf16 = 1u << 5;
  constexpr uint32_t kAmx = 1u << 22 | 1u << 24;  // AMX-BF16, AMX-TILE
  features.avx2 = (b7 & kAvx2) && enabled(0x6);
  features.avx512 = features.avx2 && (b7 & kAvx512) == kAvx512 && enabled(0xe6);
  features.avx512_bf16 = features.avx512 && (a71 & kAvx512Bf16);
  features.amx = features.avx512_bf16 && (d7 & kAmx) == kAmx && enabled(0x60000) && MayUseTiles();
  return features;
}

#endif

struct Candidate {
  Isa isa;
  bool supported;
};

}  // namespace

absl::StatusOr<Isa> ChooseIsa(absl::string_view name) {
#ifdef MNEME_BUILT_avx2  // neither on other machines nor beside sanitizers
  static const Features features = Detect();
  // Best first. "amx" is avx512_bf16 with products of bf16 on tiles; it counts as supported only
  // where the tiles were granted to this process.
  const Candidate candidates[] = {
      {{"amx", &amx::Ops()}, features.amx},
      {{"avx512_bf16", &avx512_bf16::Ops()}, features.avx512_bf16},
      {{"avx512", &avx512::Ops()}, features.avx512},
      {{"avx2", &avx2::Ops()}, features.avx2},
      {{"baseline", &baseline::Ops()}, true},
  };
#else
  const Candidate candidates[] = {{{"baseline", &baseline::Ops()}, true}};
#endif
  for (const Candidate& candidate : candidates) {
    if (name == "auto" ? candidate.supported : name == candidate.isa.name) {
      if (candidate.supported) return candidate.isa;
      return absl::FailedPreconditionError(
          absl::StrCat("instruction set \"", name, "\": not supported by this host"));
    }
  }
  for (const absl::string_view known : {"avx2", "avx512", "avx512_bf16", "amx"}) {
    if (name == known) {
      return absl::FailedPreconditionError(
          absl::StrCat("instruction set \"", name, "\": not in this program"));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction set \"", name,
                   "\", expected auto, baseline, avx2, avx512, avx512_bf16 or amx"));
}

}  // namespace mneme
