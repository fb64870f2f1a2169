#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/memoria_keys.h"
#include "models/families/stack_keys.h"
#include "models/networks/bert_classifier.h"

namespace mneme {
namespace {

using nlohmann::json;

constexpr int kMaxBertPositions = 1 << 24;
constexpr int kMaxTypes = 1 << 10;
constexpr int kMaxLabels = 1 << 16;

// The labels by their ids, which are the keys of an object: "0" to "n - 1".
std::vector<std::string> ReadLabels(ConfigReader& reader) {
  const json* map = reader.Find("id2label");
  if (map == nullptr || map->is_null()) {
    const int count = reader.Int("num_labels", 2, 1, kMaxLabels);
    std::vector<std::string> labels;
    for (int i = 0; i < count; ++i) labels.push_back(absl::StrCat("LABEL_", i));
    return labels;
  }
  if (!map->is_object() || map->empty() || map->size() > kMaxLabels) {
    reader.Invalid("id2label", *map, "an object with the name of each class by its id");
    return {"LABEL_0"};
  }
  std::vector<std::string> labels(map->size());
  std::vector<bool> named(map->size());
  for (const auto& [key, value] : map->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || id >= labels.size() || named[id] || !value.is_string()) {
      reader.Invalid("id2label", *map,
                     absl::StrCat("names of classes, strings, by their ids from 0 to ",
                                  labels.size() - 1, ", not \"", key, "\": ", value.dump()));
      return labels;
    }
    named[id] = true;
    labels[id] = value.get<std::string>();
    const auto other = std::find(labels.begin(), labels.end(), labels[id]);
    const auto same = std::find(other + 1, labels.end(), labels[id]);
    if (labels[id].empty() || same != labels.end()) {
      reader.Invalid("id2label", *map,
                     absl::StrCat("a name of its own for each class, not ", value.dump(),
                                  labels[id].empty() ? "" : " for two"));
      return labels;
    }
  }
  return labels;
}

// label2id says the same the other way round.
void CheckLabelIds(ConfigReader& reader, const std::vector<std::string>& labels) {
  const json* map = reader.Find("label2id");
  if (map == nullptr || map->is_null()) return;
  bool agrees = map->is_object() && map->size() <= labels.size();
  for (size_t id = 0; agrees && id < labels.size(); ++id) {
    const auto it = map->find(labels[id]);
    agrees = it != map->end() && it->is_number_integer() && *it == id;
  }
  if (agrees) return;
  reader.Invalid("label2id", *map,
                 absl::StrCat("the ids of the ", labels.size(), " classes of id2label"));
}

Classes::Scores ReadScores(ConfigReader& reader, size_t labels) {
  if (reader.IsNull("problem_type")) {
    return labels > 1 ? Classes::Scores::kSoftmax : Classes::Scores::kSigmoid;
  }
  switch (ReadChoice(reader, "problem_type",
                     {"single_label_classification", "multi_label_classification", "regression"})) {
    case 1:
      return Classes::Scores::kSigmoid;
    case 2:
      return Classes::Scores::kIdentity;
    default:
      return Classes::Scores::kSoftmax;
  }
}

void ReadClasses(ConfigReader& reader, Classes& classes) {
  classes.labels = ReadLabels(reader);
  CheckLabelIds(reader, classes.labels);
  if (!reader.IsNull("num_labels")) {
    const int count = reader.Int("num_labels", 2, 1, kMaxLabels);
    if (static_cast<size_t>(count) != classes.labels.size()) {
      reader.Invalid("num_labels", count,
                     absl::StrCat("as many as there are in id2label: ", classes.labels.size()));
    }
  }
  classes.scores = ReadScores(reader, classes.labels.size());
  // What classes are called moves nothing.
  reader.Disregard({"id2label", "label2id", "num_labels", "problem_type"});
  reader.Keep("classes", classes.labels.size());
}

// What both families have that is not read here.
void RefuseOthers(ConfigReader& reader) {
  RefuseUnlessNull(reader, "quantization_config", "null: only f32, bf16 and f16 weights are read");
  if (ReadChoice(reader, "position_embedding_type", {"absolute"}) != 0) return;
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (reader.Bool(key, false)) reader.Unsupported(key, true, "false");
  }
  reader.Disregard({"use_cache", "hidden_dropout_prob", "attention_probs_dropout_prob",
                    "classifier_dropout", "initializer_range", "bos_token_id", "eos_token_id",
                    "tie_word_embeddings", "memoria_device", "memoria_reset_period"});
}

NetworkMaker ReadBert(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const bool roberta = absl::EndsWith(model_type, "roberta");
  const bool memoria = absl::StartsWith(model_type, "memoria_");
  RefuseOthers(reader);
  BertClassifierParts parts;
  NetworkInfo& info = parts.info;
  Classes& classes = info.classes;
  info.vocab = config.vocab =
      reader.Int("vocab_size", roberta && !memoria ? 50265 : 30522, 1, kMaxVocab);
  info.model_dim = reader.Int("hidden_size", 768, 1, kMaxModelDim);
  info.layers = reader.Int("num_hidden_layers", 12, 1, kMaxLayers);
  parts.mlp_dim = reader.Int("intermediate_size", 3072, 1, kMaxMlpDim);
  parts.activation = ReadActivation(reader, "hidden_act", "gelu");
  parts.norm_eps = static_cast<float>(reader.Number("layer_norm_eps", 1e-12, kLeastNumber, 1));
  parts.heads = reader.Int("num_attention_heads", 12, 1, kMaxHeads);
  if (info.model_dim % parts.heads != 0 || info.model_dim / parts.heads > kMaxHeadDim) {
    reader.Invalid("num_attention_heads", parts.heads,
                   absl::StrCat("a number that divides hidden_size (", info.model_dim,
                                ") into heads of a width of at most ", kMaxHeadDim));
    parts.heads = 1;
  }
  parts.positions = reader.Int("max_position_embeddings", 512, 1, kMaxBertPositions);
  parts.types = reader.Int("type_vocab_size", 2, 1, kMaxTypes);
  // Upstream's Memoria gives all tokens the first type, those of a pair, too.
  classes.types = memoria ? 1 : parts.types;
  classes.padding = reader.Int("pad_token_id", roberta ? 1 : 0, 0, info.vocab - 1);
  ReadClasses(reader, classes);

  int positions = parts.positions;  // of a segment
  if (roberta) {
    // Those of padding and of all ids below it are nobody's.
    parts.prefix = "roberta.";
    parts.skipped = classes.padding;
    parts.first_position = classes.padding + 1;
    parts.head = BertClassifierParts::Head::kClassifier;
    positions -= parts.first_position;
    if (positions < 1) {
      reader.Invalid("max_position_embeddings", parts.positions,
                     absl::StrCat("more than pad_token_id + 1 (", parts.first_position,
                                  "): positions are counted from there"));
      positions = 1;
    }
  }
  classes.segment = positions;
  classes.one_segment = !memoria;
  if (!memoria) {
    info.positions = positions;
  } else {
    parts.memory_layer = reader.Int("memory_layer_index", 9, 0, kMaxLayers);
    if (parts.memory_layer >= info.layers - 1) {
      reader.Invalid("memory_layer_index", parts.memory_layer,
                     absl::StrCat("a layer below the last one, from 0 to ", info.layers - 2,
                                  " (num_hidden_layers is ", info.layers, ")"));
      parts.memory_layer = 0;
    }
    const int above = std::max(1, info.layers - 1 - parts.memory_layer);
    const char* const bound =
        roberta ? "max_position_embeddings less pad_token_id + 1" : "max_position_embeddings";
    EngramConfig engrams = ReadEngrams(reader, {.layers = above,
                                                .heads = parts.heads,
                                                .positions = positions,
                                                .positions_key = bound,
                                                .flag = "--segment-size"});
    engrams.encoder = "abstractor.";
    engrams.encoder_dim = parts.mlp_dim;
    engrams.first_layer = parts.memory_layer + 1;
    // A draw is numbered by the segment that it is made in, from 0 on, and crossings count from 1.
    engrams.rules.seed -= kEngramDrawStep << 32;
    classes.segment = engrams.segment;
    classes.fills_up = true;
    parts.engrams = engrams;
  }
  return [parts](const NetworkBuilder& builder) { return MakeBertClassifier(builder, parts); };
}

}  // namespace

const Architecture kBert = {
    .model_type = "bert", .read = ReadBert, .classifies = true, .ways = "[{}]"};

const Architecture kRoberta = {.model_type = "roberta",
                               .read = ReadBert,
                               .classifies = true,
                               .ways = R"([{"hidden_act": "relu", "type_vocab_size": 3}])"};

const Architecture kMemoriaBert = {
    .model_type = "memoria_bert", .read = ReadBert, .classifies = true, .ways = R"([{},
                {"memoria_profile": "upstream_1_1", "memoria_initial_lifespan": 2,
                 "memoria_ltm_ties": "oldest", "memory_layer_index": 1}])"};

const Architecture kMemoriaRoberta = {
    .model_type = "memoria_roberta",
    .read = ReadBert,
    .classifies = true,
    .ways = R"([{"memoria_profile": "paper", "segment_tokens": 9}])"};

}  // namespace mneme
