// A session's state as named tensors, whatever the device keeps: what is saved for, and read by,
// another device, another state dtype or another program.
//
// Canonical form, field by field of the layout, in its order:
//   numbers        f32, or f64 where the device keeps f64; other types as they are
//   rows of int8   (kernels/state_row.h) as the numbers that they stand for
//   held back      added to what it is held back from: no tensor of its own
//   derived        left out
//   rows           those of the positions that are held, from the oldest to the newest
//   not written    zeros, and a flag that says so or no tokens; never the bytes of a former owner
// Matrix memories are [memories, value_heads, value_dim, key_dim]: some of flash-linear-attention's
// caches are that, others its transpose, key first. Windows are [memories, width - 1, channels].
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/tensor_view.h"
#include "models/model.h"
#include "models/state_layout.h"

namespace mneme {

struct StateTensor {
  std::string name;  // of the field: "layers.3.memory"
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major

  // The elements of a tensor whose dtype is T, as bits.
  template <typename T>
  std::vector<T> Elements() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  // The elements of a tensor of f32 or f64.
  std::vector<double> Numbers() const;
};

// A tensor but for its bytes.
struct StateTensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
};

// The tensors of the canonical state of a session that was fed `tokens` tokens, in the layout's
// order.
std::vector<StateTensorSpec> CanonicalTensors(const StateLayout& layout, int64_t tokens);

struct CanonicalState {
  int64_t tokens = 0;  // that were fed
  std::vector<StateTensor> tensors;

  // Null if there is none.
  const StateTensor* Find(absl::string_view name) const;
  // One that is known to be there.
  const StateTensor& Get(absl::string_view name) const;
};

// The state in `slab`, backend memory, of a session that was fed `tokens` tokens. The slab stays as
// it is, held-back writes included: a copy is settled. Takes the memory of one more slab, but for
// its part that grows, meanwhile (RESOURCE_EXHAUSTED), and waits for the device.
absl::StatusOr<CanonicalState> DecodeState(Backend& backend, const Model& model,
                                           const std::byte* slab, int64_t tokens);

// Some fields of a slab on the host: for who drives a device to copy what others decode.
class StateImage {
 public:
  // Takes and touches the memory, so that Copy finds it there. `fields`: names of the layout's that
  // have the same size whatever was fed, in a layout without writes held back.
  StateImage(const StateLayout& layout, const std::vector<std::string>& fields);

  // Waits for the device.
  absl::Status Copy(Backend& backend, const std::byte* slab, int64_t tokens);
  // The tensors of these fields alone, in the layout's order. On any thread.
  CanonicalState Decode() const;

  int64_t bytes() const;  // that Copy copies

 private:
  const StateLayout& layout_;
  std::vector<const StateField*> fields_;
  std::vector<const StateField*> copied_;  // with the flags that say what was written
  std::unique_ptr<std::byte[]> slab_;      // only the bytes of `copied_` are there
  int64_t tokens_ = 0;
};

// A whole slab on the host, on its way from a session or to one: who drives a device copies, and
// leaves it to others to make tensors of it.
class StateCopy {
 public:
  // Takes the memory, and touches what has the same size whatever was fed. `model` must outlive it.
  explicit StateCopy(const Model& model);

  // --- Where the device is driven ---

  // Copies the state in `slab`, of a session that was fed `tokens` tokens, as DecodeState does.
  absl::Status Read(Backend& backend, const std::byte* slab, int64_t tokens);
  // Makes `slab`, backend memory of a new session (its phase stays), what Encode was given; all
  // bytes are written, but for blocks that are not filled.
  absl::Status Write(Backend& backend, std::byte* slab);

  // --- On any thread, of what was read or encoded ---

  int64_t tokens() const { return tokens_; }
  // The slab that Write makes, of phase 0.
  const std::byte* slab() const { return slab_.get(); }
  // Without late fields that are zero.
  std::vector<StateTensorSpec> tensors() const;
  // The values of tensors()[index].
  StateTensor Decode(size_t index) const;
  CanonicalState Decode() const;
  // INVALID_ARGUMENT names the tensor that is missing, is not of this model, has another dtype or
  // shape, or says what cannot be (Model::CheckState).
  absl::Status Encode(const CanonicalState& state);
  // Tensors that were encoded with a number that the device's dtype does not hold.
  int rounded_tensors() const { return rounded_tensors_; }

 private:
  void Clear(int64_t tokens);
  bool EncodeField(const StateField& field, const StateTensor& tensor);
  // The fields of tensors().
  std::vector<const StateField*> Shown() const;

  const Model& model_;
  const StateLayout& layout_;
  std::vector<const StateField*> saved_;  // in the layout's order
  std::unique_ptr<std::byte[]> slab_;     // but for blocks that are not filled
  int64_t tokens_ = 0;
  int rounded_tensors_ = 0;
};

// StateCopy's Encode and Write. The slab is as it was after an error of the former.
absl::Status EncodeState(Backend& backend, const Model& model, const CanonicalState& state,
                         std::byte* slab);

}  // namespace mneme
