// What config.json says of the models whose shapes have names (SpecOfShape), as wide and deep as a
// published one, with the defaults of whoever published it.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace mneme {

nlohmann::ordered_json MomConfig(int model_dim, int mlp_dim);
// The same in the format of flash-linear-attention's fork, of which Mixture-of-Memories came first.
nlohmann::ordered_json MomGatedDeltaNetConfig();
nlohmann::ordered_json GdnConfig(int model_dim, int mlp_dim);
// A model of flash-linear-attention as wide and deep as its authors' 340M, with upstream's defaults
// but for `own`: heads of the default size, and so fewer of them, or, where the number of heads is
// what upstream's configurations keep, that.
nlohmann::ordered_json FlaConfig(absl::string_view model_type, const nlohmann::ordered_json& own);
// Published RWKV-7 checkpoints, and flash-linear-attention's configurations, have heads of 64 and a
// feed-forward of four times the model.
nlohmann::ordered_json Rwkv7Config(int model_dim, int layers);
nlohmann::ordered_json Rwkv6Config();
nlohmann::ordered_json MambaConfigOf(const char* model_type);
nlohmann::ordered_json Mamba2ConfigOf();
// Scans, and attention to a window in every other layer.
nlohmann::ordered_json SambaConfig();
// Attention alone, as wide and deep as the memories of these.
nlohmann::ordered_json LlamaConfig();
// A quarter as wide as the 7B: as many channels a head, and heads that share keys and values.
nlohmann::ordered_json MistralConfig();
// As transformers writes it; 124M is the smallest of its authors'.
nlohmann::ordered_json Gpt2Config(int model_dim, int layers, int heads);
// Memoria's settings for WikiText-103.
nlohmann::ordered_json MemoriaConfig(nlohmann::ordered_json config);
// As transformers writes them; these are the smaller ones of their authors.
nlohmann::ordered_json BertConfig();
nlohmann::ordered_json RobertaConfig();
// Memoria's settings for classification, on segments as long as there are positions.
nlohmann::ordered_json MemoriaBertConfig(nlohmann::ordered_json config);
// Titans as wide and deep as the 340M of the same authors, its memory fed token by token.
nlohmann::ordered_json TitansConfig(const char* variant, const nlohmann::ordered_json& own);
nlohmann::ordered_json TitansWithAttention(const char* variant, const nlohmann::ordered_json& own);
nlohmann::ordered_json TitansWithContext();
// As the authors' 350M of ttt-lm-jax, whose backbone has gates and convolutions.
nlohmann::ordered_json TttConfig(const char* layer_type, double base_rate);
// titans-pytorch's transformer with a memory in every second layer, about as wide and deep.
nlohmann::ordered_json TitansPytorchConfig();

}  // namespace mneme
