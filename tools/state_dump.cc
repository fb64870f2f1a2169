#include "tools/state_dump.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/strings/substitute.h"
#include "base/status_macros.h"
#include "models/safetensors_writer.h"

namespace mneme {
namespace {

struct DumpedTensor {
  SafetensorsSpec spec;
  std::vector<std::byte> bytes;
};

template <typename Values>
std::vector<std::byte> Narrowed(const Values& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(value));
  }
  return bytes;
}

DumpedTensor Dumped(std::string name, const StateTensor& tensor, std::vector<int64_t> shape) {
  if (tensor.dtype != DType::kF64) {
    return {{std::move(name), tensor.dtype, std::move(shape)}, tensor.bytes};
  }
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return {{std::move(name), DType::kF32, std::move(shape)}, Narrowed(values)};
}

// How a copy of a trained memory's tensors is called: "$0" is the layer, "$1" the tensor.
struct CopyName {
  absl::string_view field;  // of the slab: "memory", of "layers.3.memory.mem_weights.0"
  absl::string_view name;
};
constexpr CopyName kNames[] = {{"memory", "layers.$0.final.$1"},
                               {"momentum", "layers.$0.final_momentum.$1"},
                               {"anchor", "layers.$0.final_anchor.$1"},
                               {"frozen", "layers.$0.final_frozen.$1"},
                               {"gradient", "layers.$0.final_gradient.$1"}};
constexpr CopyName kNamesOfTtt[] = {{"memory", "layers.$0.$1_states"},
                                    {"gradient", "layers.$0.$1_grad"}};

// The program whose names and shapes a dump has.
enum class Manner { kOurs, kTtt, kTitansPytorch };

Manner MannerOf(const ModelInfo& model) {
  if (model.architecture == "ttt") return Manner::kTtt;
  return model.architecture == "titans_mac_lucidrains" ? Manner::kTitansPytorch : Manner::kOurs;
}

class Dump {
 public:
  explicit Dump(const ModelInfo& model)
      : model_(model),
        manner_(MannerOf(model)),
        names_(manner_ == Manner::kTtt ? std::span<const CopyName>(kNamesOfTtt)
                                       : std::span<const CopyName>(kNames)) {}

  void AddIds(std::span<const int32_t> ids) {
    const auto bytes = std::as_bytes(ids);
    tensors_.push_back({{"input_ids", DType::kI32, {static_cast<int64_t>(ids.size())}},
                        {bytes.begin(), bytes.end()}});
  }

  void AddState(const StateTensor& tensor) {
    const int64_t* const dims = tensor.shape.dims;
    for (const TrainedLayer& layer : model_.trained) {
      absl::string_view rest = tensor.name;
      if (!absl::ConsumePrefix(&rest, absl::StrCat("layers.", layer.layer, "."))) continue;
      for (const CopyName& copy : names_) {
        absl::string_view part = rest;
        if (!absl::ConsumePrefix(&part, absl::StrCat(copy.field, "."))) continue;
        std::vector<int64_t> shape(dims + 1, dims + tensor.shape.rank);
        if (manner_ == Manner::kTtt && shape.size() == 2) {
          shape.insert(shape.begin() + 1, 1);  // a bias, as a row
        }
        if (manner_ == Manner::kTitansPytorch) {
          absl::ConsumePrefix(&part, "memory_model_parameters.");
          if (copy.field == "momentum") {
            shape.insert(shape.begin(), shape[0] / layer.heads);
            shape[1] = layer.heads;
          }
        }
        const auto add = [&](absl::string_view name) {
          tensors_.push_back(Dumped(absl::Substitute(name, layer.layer, part), tensor, shape));
        };
        add(copy.name);
        const bool is_anchor = copy.field == "memory" && layer.anchor_period == layer.step;
        if (is_anchor && manner_ != Manner::kTtt) add("layers.$0.final_anchor.$1");
        return;
      }
    }
    tensors_.push_back(Dumped(tensor.name, tensor, {dims, dims + tensor.shape.rank}));
  }

  void AddTracks(const LayerTape& tape) {
    for (const auto& [key, track] : tape.tracks()) {
      const auto& [layer, name] = key;
      std::vector<int64_t> shape = {tape.tokens()};
      shape.insert(shape.end(), track.shape.begin(), track.shape.end());
      std::vector<double> values = track.values;
      if (manner_ == Manner::kTitansPytorch && (name == "loss" || name == "theta")) {
        TurnToHeads(layer, shape, values);
      }
      tensors_.push_back(
          {{absl::StrCat("layers.", layer, ".", name), DType::kF32, shape}, Narrowed(values)});
    }
  }

  absl::Status Write(const std::string& path) const {
    std::vector<SafetensorsSpec> specs;
    for (const DumpedTensor& tensor : tensors_) specs.push_back(tensor.spec);
    MNEME_ASSIGN_OR_RETURN(
        const auto writer,
        SafetensorsWriter::Create(path, specs, {{"architecture", model_.architecture}}));
    for (const DumpedTensor& tensor : tensors_) {
      MNEME_RETURN_IF_ERROR(writer->Write(tensor.bytes));
    }
    return writer->Finish();
  }

 private:
  // [tokens, heads * pairs] as [heads, tokens * pairs], of the tokens whose steps are done.
  void TurnToHeads(int layer, std::vector<int64_t>& shape, std::vector<double>& values) const {
    for (const TrainedLayer& trained : model_.trained) {
      if (trained.layer != layer) continue;
      const int64_t heads = trained.heads, pairs = shape[1] / heads;
      const int64_t tokens = shape[0] / trained.step * trained.step;
      std::vector<double> turned;
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t t = 0; t < tokens; ++t) {
          const auto from = values.begin() + (t * heads + head) * pairs;
          turned.insert(turned.end(), from, from + pairs);
        }
      }
      shape = {heads, tokens * pairs};
      values = std::move(turned);
    }
  }

  const ModelInfo& model_;
  const Manner manner_;
  const std::span<const CopyName> names_;
  std::vector<DumpedTensor> tensors_;
};

}  // namespace

absl::Status WriteStateDump(const ModelInfo& model, std::span<const int32_t> ids,
                            const CanonicalState& state, const LayerTape& tape,
                            const std::string& path) {
  Dump dump(model);
  dump.AddIds(ids);
  for (const StateTensor& tensor : state.tensors) dump.AddState(tensor);
  dump.AddTracks(tape);
  return dump.Write(path);
}

}  // namespace mneme
