// The backends that this host can run and that have to agree with the reference.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace mneme {

struct BackendUnderTest {
  std::string device;  // "cpu", "cuda", or "reference"
  std::string isa;     // of "cpu"

  // Neither how work is divided nor how much of it there is changes a bit of a result. CUDA chooses
  // among kernels by size, which add up in different orders.
  bool bit_exact() const { return device != "cuda"; }

  // Aborts if the backend cannot be made: AvailableBackends() has made it before.
  std::unique_ptr<Backend> Make(int threads = 2, DType compute_dtype = DType::kF32) const;
};

void PrintTo(const BackendUnderTest& backend, std::ostream* out);

// The CPU in every instruction set that this host has, slowest first; or, where the environment
// says MNEME_TEST_DEVICE=cuda, as the tests labelled `gpu` do, the GPU alone. Never empty.
std::vector<BackendUnderTest> AvailableBackends();

// These and the reference itself: for answers worked out by hand.
std::vector<BackendUnderTest> AllBackends();

// The same, of the CPU's instruction sets the slowest and the fastest: for programs of whole
// networks, since what differs by instruction set is tested operation by operation.
std::vector<BackendUnderTest> OutermostBackends();

// Names the cases of a suite instantiated with one of these lists: cpu_avx2, ...
std::string BackendName(const testing::TestParamInfo<BackendUnderTest>& info);

// Whether a GPU is there that runs kernels for Hopper alone, and not those that others have: by the
// type in which its large products want to write.
bool HasHopperKernels();

// The GPU, which AvailableBackends() has to list. Aborts if it cannot be made.
std::unique_ptr<Backend> MakeCuda(DType compute_dtype, DType state_dtype = DType::kF32);

// The float64 answer, compute dtype kF32: activations are not rounded.
std::unique_ptr<Backend> MakeReference(DType compute_dtype = DType::kF32);

}  // namespace mneme
