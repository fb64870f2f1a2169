#include "models/families/attention_keys.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace mneme {
namespace {

using nlohmann::json;

// `layers` of one object, each once; `cut` gets those that there are not.
std::vector<int> ReadLayers(ConfigReader& reader, int all, bool cuts, std::vector<int>& cut) {
  const json* list = reader.Find("layers");
  std::vector<int> layers;
  bool valid = list != nullptr && list->is_array();
  for (size_t i = 0; valid && i < list->size(); ++i) {
    const json& layer = (*list)[i];
    const auto most = static_cast<uint64_t>(cuts ? kMaxLayers : all);
    valid = layer.is_number_unsigned() && layer.get<uint64_t>() < most;
    if (valid) (layer.get<int>() < all ? layers : cut).push_back(layer.get<int>());
  }
  if (!valid) {
    reader.Invalid("layers", list == nullptr ? json() : *list,
                   absl::StrCat("a list of layers from 0 to num_hidden_layers - 1 (", all - 1,
                                "), which have attention"));
    layers.clear();
  }
  return layers;
}

// The attention of one object of `attn`.
AttentionConfig ReadPart(ConfigReader& part, const StackKeys& stack, ModelConfig& config,
                         const HybridOptions& options) {
  if (!part.Has("num_heads")) {
    part.Invalid("num_heads", nullptr, "the number of heads of the layers with attention");
  }
  AttentionConfig attention = ReadAttentionConfig(part, stack.model_dim, /*default_heads=*/1);
  if (!part.IsNull("qk_norm") && *part.Find("qk_norm") != false) {
    part.Unsupported("qk_norm", *part.Find("qk_norm"),
                     "false: upstream's attention beside memories has no such norm");
  }
  attention.prefix = options.prefix;
  if (!options.bias_and_theta) {
    const AttentionConfig own;
    const auto warn = [&](const char* key) {
      config.warnings.push_back(absl::StrCat(
          "key \"", key, "\" of \"attn\" is ", Shown(*part.Find(key)), " and ignored: attention ",
          "layers of this model_type have no bias, and frequencies of a base of 10000"));
    };
    if (attention.qkv_bias) warn("qkv_bias");
    if (attention.rope_theta != own.rope_theta) warn("rope_theta");
    attention.qkv_bias = own.qkv_bias;
    attention.rope_theta = own.rope_theta;
  }
  return attention;
}

// The text that counts of these keys, in however many objects the file spells them out.
json Canonical(const AttentionLayers& layers) {
  json list = json::array();
  for (const auto& [layer, attention] : layers) {
    list.push_back({layer, attention.heads, attention.kv_heads, attention.qkv_bias,
                    attention.window, attention.rope_theta});
  }
  return list;
}

}  // namespace

AttentionConfig ReadAttentionConfig(ConfigReader& reader, int model_dim, int default_heads) {
  AttentionConfig attention;
  attention.heads = reader.Int("num_heads", default_heads, 1, kMaxHeads);
  const int heads = attention.heads;
  if (model_dim % heads != 0 || model_dim / heads % 2 != 0 || model_dim / heads > kMaxHeadDim) {
    reader.Invalid("num_heads", heads,
                   absl::StrCat("a number that divides hidden_size (", model_dim,
                                ") into heads of an even width of at most ", kMaxHeadDim));
    return {};
  }
  attention.head_dim = model_dim / heads;
  attention.kv_heads = reader.NullableInt("num_kv_heads", 1, kMaxHeads).value_or(heads);
  if (heads % attention.kv_heads != 0) {
    reader.Invalid("num_kv_heads", attention.kv_heads,
                   absl::StrCat("a number that divides num_heads (", heads, ")"));
    attention.kv_heads = heads;
  }
  reader.Keep("num_kv_heads", attention.kv_heads);
  attention.qkv_bias = reader.Bool("qkv_bias", false);
  attention.window = reader.NullableInt("window_size", 1, kMaxWindow).value_or(0);
  attention.rope_theta = reader.Number("rope_theta", 10000, 1, 1e30);
  RefuseUnlessNull(reader, "rope_scaling", "null: frequencies are those of rope_theta alone");
  if (!reader.IsNull("use_rope") && *reader.Find("use_rope") != true) {
    reader.Unsupported("use_rope", *reader.Find("use_rope"), "true: keys are rotated");
  }
  return attention;
}

AttentionLayers ReadAttentionLayers(ConfigReader& reader, const StackKeys& stack,
                                    ModelConfig& config, const HybridOptions& options) {
  const json attn = reader.Has("attn") ? *reader.Find("attn") : options.otherwise;
  AttentionLayers layers;
  if (attn.is_null()) return layers;
  if (!attn.is_object() && !(attn.is_array() && options.lists)) {
    const char* expected = options.lists ? "null, an object, or a list of objects"
                                         : "null, or one object for all layers with attention";
    if (attn.is_array()) {
      reader.Unsupported("attn", attn, expected);
    } else {
      reader.Invalid("attn", attn, expected);
    }
    return layers;
  }
  const json list = attn.is_array() ? attn : json::array({attn});
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where =
        absl::StrCat("\"attn\"", attn.is_array() ? absl::StrCat("[", i, "]") : "");
    if (!list[i].is_object()) {
      reader.Invalid("attn", attn, "a list of objects alone");
      return layers;
    }
    ConfigReader part(list[i], absl::StrCat(reader.path(), ": ", where));
    std::vector<int> cut;
    const std::vector<int> own = ReadLayers(part, stack.layers, options.cuts_layers, cut);
    // Files of fewer layers keep the list that is written for all of them.
    const bool is_written = options.otherwise.is_object() &&
                            options.otherwise["layers"] == list[i].value("layers", json());
    if (!cut.empty() && !is_written) {
      config.warnings.push_back(absl::StrCat(
          "key \"layers\" of ", where, " has ", absl::StrJoin(cut, ", "),
          ", ignored: layers are 0 to num_hidden_layers - 1 (", stack.layers - 1, ")"));
    }
    const AttentionConfig attention = ReadPart(part, stack, config, options);
    for (const int layer : own) {
      if (!layers.emplace(layer, attention).second) {
        part.Invalid("layers", *part.Find("layers"),
                     absl::StrCat("each layer once in all of \"attn\", and not ", layer, " again"));
      }
    }
    reader.Adopt(part);
  }
  if (!layers.empty()) reader.Keep("attn", Canonical(layers));
  return layers;
}

MixerMaker Hybrid(AttentionLayers attention, MixerMaker memory) {
  if (attention.empty()) return memory;
  return
      [attention = std::move(attention), memory = std::move(memory)](const LayerBuilder& builder) {
        const auto layer = attention.find(builder.layer);
        return layer == attention.end() ? memory(builder) : MakeAttention(builder, layer->second);
      };
}

}  // namespace mneme
