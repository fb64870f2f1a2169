#include "kernels/backend.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#ifdef MNEME_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace mneme {
namespace {

class DoneTransfer final : public Transfer {
 public:
  bool done() const override { return true; }
};

}  // namespace

std::unique_ptr<Transfer> Backend::BeginTransfer(std::span<const TransferPiece> pieces,
                                                 TransferDirection direction,
                                                 std::function<void()> on_done) {
  for (const TransferPiece& piece : pieces) {
    if (direction == TransferDirection::kToHost) {
      CopyToHost(piece.dst, piece.src, piece.bytes);
    } else {
      CopyFromHost(piece.dst, piece.src, piece.bytes);
    }
  }
  if (on_done != nullptr) on_done();
  return std::make_unique<DoneTransfer>();
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view device,
                                                     const BackendOptions& options) {
#ifdef MNEME_CUDA
  if (device == "cuda" || (device == "auto" && HasCudaDevice())) return MakeCudaBackend(options);
#endif
  if (device == "cpu" || device == "auto") return MakeCpuBackend(options);
  if (device == "cuda") {
    return absl::FailedPreconditionError("device \"cuda\": this build has no CUDA backend");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown device \"", device, "\", expected auto, cpu or cuda"));
}

}  // namespace mneme
