#include "models/families/families.h"
#include "models/families/gpt2_parts.h"
#include "models/families/memoria_keys.h"
#include "models/gpt2_tensors.h"
#include "models/networks/memoria_model.h"

namespace mneme {

namespace {

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

}  // namespace

// Lifespans that are longer than what is counted; then what is left out of the others, and engrams
// that die as short-term ones.
const Architecture kGpt2WithMemoria = {
    .model_type = "gpt2_with_memoria", .read = ReadGpt2WithMemoria, .ways = R"([{},
                {"memoria_lifespan_extend_scale": 300},
                {"memoria_profile": "upstream_1_1", "memoria_initial_lifespan": 2,
                 "memoria_ltm_ties": "oldest"},
                {"memoria_profile": "paper", "memoria_num_memories": null,
                 "memoria_stm_capacity": 9, "tie_word_embeddings": true}])"};

}  // namespace mneme
