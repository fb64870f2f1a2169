#include "models/families/gpt2_with_memoria.h"

#include "models/families/gpt2_parts.h"
#include "models/families/memoria_keys.h"
#include "models/gpt2_tensors.h"
#include "models/networks/memoria_model.h"

namespace mneme {

NetworkMaker ReadGpt2WithMemoria(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  const Gpt2Keys keys = ReadGpt2Keys(reader, config);
  // Upstream has these keys of GPT-2's, and does not look at them.
  reader.Disregard({"scale_attn_weights", "scale_attn_by_inverse_layer_idx"});
  MemoriaModelParts parts = {
      .model = keys.stack.Parts(),
      .positions = keys.positions,
      .attention = keys.attention,
      .engrams = ReadEngrams(
          reader,
          {.layers = keys.stack.layers,
           .heads = keys.attention.heads,
           .positions = keys.positions,
           .positions_key = "n_positions",
           .flag = "--max-length (150 where it is not given; their evaluation takes 512 then)",
           .may_encode_nothing = true}),
      .mlp = keys.mlp};
  parts.attention.segment = parts.engrams.segment;
  parts.model.embeddings = "transformer.wte.weight";
  parts.model.positions = "transformer.wpe.weight";
  parts.model.layer_prefix = "transformer.h.";
  parts.model.norm = LayerNormOf("transformer.ln_f");
  return [parts](const NetworkBuilder& builder) { return MakeMemoriaModel(builder, parts); };
}

}  // namespace mneme
