// The promises of every backend besides its kernels.
#include "kernels/backend.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status StatusOf(absl::string_view device, const std::string& isa) {
  BackendOptions options;
  options.threads = 1;
  options.isa = isa;
  return MakeBackend(device, options).status();
}

TEST(MakeBackendTest, AnUnknownDeviceIsNamed) {
  const absl::Status status = StatusOf("abacus", "auto");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("abacus"));
}

TEST(MakeBackendTest, AnUnknownInstructionSetIsNamed) {
  const absl::Status status = StatusOf("cpu", "sse9");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sse9"));
}

TEST(MakeBackendTest, AKnownInstructionSetIsMadeOrSaidToBeMissing) {
  for (const char* isa : {"auto", "baseline", "avx2", "avx512", "avx512_bf16", "amx"}) {
    const absl::Status status = StatusOf("cpu", isa);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(isa));
    }
  }
  EXPECT_TRUE(StatusOf("cpu", "auto").ok());
  EXPECT_TRUE(StatusOf("auto", "auto").ok());
}

class BackendTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
};

TEST_P(BackendTest, SaysWhatItIs) {
  EXPECT_EQ(backend_->name(), GetParam().device);
  EXPECT_FALSE(backend_->description().empty());
  EXPECT_EQ(backend_->compute_dtype(), DType::kF32);
  const bool reference = GetParam().device == "reference";
  EXPECT_EQ(backend_->activation_dtype(), reference ? DType::kF64 : DType::kF32);
  EXPECT_EQ(backend_->state_format().memory_dtype, reference ? DType::kF64 : DType::kF32);
  if (!reference) {
    EXPECT_THAT(backend_->description(), HasSubstr(GetParam().isa));
  }
}

TEST_P(BackendTest, GivesAlignedMemoryOfEverySize) {
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4096, 1 << 20, 5 << 20}) {
    const absl::StatusOr<void*> data = backend_->Allocate(bytes);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 64, 0u) << bytes;
    backend_->Zero(*data, bytes);
    std::vector<char> host(static_cast<size_t>(bytes), 'x');
    backend_->CopyToHost(host.data(), *data, bytes);
    EXPECT_EQ(host, std::vector<char>(static_cast<size_t>(bytes), 0)) << bytes;
    backend_->Free(*data);
  }
}

TEST_P(BackendTest, SaysHowMuchMemoryIsLeft) {
  const absl::StatusOr<int64_t> available = backend_->AvailableBytes();
  ASSERT_TRUE(available.ok()) << available.status();
  EXPECT_GT(*available, 1 << 20);
}

TEST_P(BackendTest, CopiesKeepTheirOrder) {
  void* a = *backend_->Allocate(100);
  void* b = *backend_->Allocate(100);
  std::vector<char> source(100, 'a'), result(100);
  backend_->CopyFromHost(a, source.data(), 100);
  source.assign(100, 'z');  // the host's copy may be reused at once
  backend_->Copy(b, a, 100);
  backend_->Zero(a, 100);
  backend_->CopyFromHost(static_cast<char*>(b) + 1, "b", 1);
  EXPECT_TRUE(backend_->Synchronize().ok());
  backend_->CopyToHost(result.data(), b, 100);
  EXPECT_EQ(std::string(result.data(), 4), "abaa");
  backend_->Free(a);
  backend_->Free(b);
}

// Pieces that begin and end anywhere, the longest more than a block of threads takes at once.
TEST_P(BackendTest, GuardedCopiesTakeThePiecesWhoseFlagsAreSet) {
  constexpr int64_t kBytes = 40000;
  const std::vector<GuardedPiece> pieces = {
      {0, 5},         {5, 11, 7},         {16, 16, 8},           {33, 1, 7},
      {47, 100, 7},   {200, 4096, 9},     {4301, 20000, 7},      {24301, 64, 8},
      {24370, 63, 7}, {24433, 15001, 10}, {kBytes - 3, 3, 1000},
  };
  std::vector<char> source(kBytes), target(kBytes, 'x');
  for (int64_t i = 0; i < kBytes; ++i) source[static_cast<size_t>(i)] = static_cast<char>(i % 101);
  source[7] = 1;
  source[8] = source[9] = 0;
  source[10] = static_cast<char>(0x80);
  source[1000] = 2;
  std::vector<char> want = target;
  int64_t bytes = 0;
  for (const GuardedPiece& piece : pieces) {
    if (piece.flag != GuardedPiece::kAlways && source[static_cast<size_t>(piece.flag)] == 0) {
      continue;
    }
    std::copy_n(source.begin() + piece.offset, piece.bytes, want.begin() + piece.offset);
    bytes += piece.bytes;
  }
  const auto table_bytes = static_cast<int64_t>(pieces.size() * sizeof(GuardedPiece));
  void* const from = *backend_->Allocate(kBytes);
  void* const to = *backend_->Allocate(kBytes);
  void* const table = *backend_->Allocate(table_bytes);
  backend_->CopyFromHost(from, source.data(), kBytes);
  backend_->CopyFromHost(to, target.data(), kBytes);
  backend_->CopyFromHost(table, pieces.data(), table_bytes);
  const auto copied = backend_->CopyGuarded(to, from, static_cast<const GuardedPiece*>(table),
                                            static_cast<int64_t>(pieces.size()));
  backend_->CopyToHost(target.data(), to, kBytes);
  EXPECT_EQ(target, want);
  EXPECT_EQ(copied.value_or(bytes), bytes);
  EXPECT_EQ(copied.has_value(), GetParam().device != "cuda");
  for (void* const data : {from, to, table}) backend_->Free(data);
}

TEST_P(BackendTest, ARecordedCopyFromPinnedMemoryReadsWhatIsThereThen) {
  auto* const pinned = static_cast<int32_t*>(*backend_->AllocatePinned(3 * sizeof(int32_t)));
  void* const data = *backend_->Allocate(3 * sizeof(int32_t));
  std::vector<int32_t> result(3);
  const auto copy = [&] { backend_->CopyFromPinned(data, pinned, 3 * sizeof(int32_t)); };
  std::fill_n(pinned, 3, 7);
  copy();
  backend_->CopyToHost(result.data(), data, 3 * sizeof(int32_t));
  EXPECT_THAT(result, ElementsAre(7, 7, 7));
  if (backend_->can_capture()) {
    const auto graph = backend_->Capture(copy);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const int32_t value : {8, 9}) {
      std::fill_n(pinned, 3, value);
      (*graph)->Replay();
      backend_->CopyToHost(result.data(), data, 3 * sizeof(int32_t));
      EXPECT_THAT(result, ElementsAre(value, value, value));
    }
  }
  backend_->Free(pinned);
  backend_->Free(data);
}

TEST_P(BackendTest, ACopyToPinnedMemoryIsThereWhenTheWorkBehindItIs) {
  auto* const pinned = static_cast<int32_t*>(*backend_->AllocatePinned(3 * sizeof(int32_t)));
  void* const data = *backend_->Allocate(3 * sizeof(int32_t));
  for (const int32_t value : {7, 8}) {
    const std::vector<int32_t> values(3, value);
    backend_->CopyFromHost(data, values.data(), 3 * sizeof(int32_t));
    backend_->CopyToPinned(pinned, data, 3 * sizeof(int32_t));
    backend_->Zero(data, 3 * sizeof(int32_t));
    EXPECT_TRUE(backend_->Synchronize().ok());
    EXPECT_THAT(std::vector<int32_t>(pinned, pinned + 3), ElementsAre(value, value, value));
  }
  backend_->Free(pinned);
  backend_->Free(data);
}

TEST(CpuBackendTest, AStateDtypeIsRefusedByTheFlagsName) {
  for (const auto& [dtype, name] : {std::pair(DType::kI8, "int8"), {DType::kF16, "f16"}}) {
    EXPECT_THAT(MakeCpuBackend({.state_dtype = dtype}).status().message(),
                HasSubstr(std::string("state dtype ") + name + " (--state-dtype)"));
  }
}

TEST_P(BackendTest, APackedMatrixRemembersItsShape) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int out : {1, 7, 16, 33}) {
      for (const int in : {1, 17, 64}) {
        const int64_t bytes = backend_->PackedBytes(dtype, out, in);
        EXPECT_GE(bytes, int64_t{out} * in * SizeOf(dtype));
        // Padding may not cost more than rounding both sizes up to 64.
        EXPECT_LE(bytes, int64_t{(out + 63) / 64 * 64} * ((in + 63) / 64 * 64) * SizeOf(dtype));
        void* data = *backend_->Allocate(bytes);
        std::vector<std::byte> host(static_cast<size_t>(out * in * SizeOf(dtype)));
        const PackedMatrix packed = backend_->PackMatrix({host.data(), dtype, {out, in}}, data);
        EXPECT_EQ(packed.data, data);
        EXPECT_EQ(packed.dtype, dtype);
        EXPECT_EQ(packed.out_features, out);
        EXPECT_EQ(packed.in_features, in);
        backend_->Free(data);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendTest, testing::ValuesIn(AllBackends()), BackendName);

}  // namespace
}  // namespace mneme
