#include "tokenizers/huggingface/tokenizer_class.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "tokenizers/tokenizer.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

// The patterns of Qwen's tokenizers. The second one counts marks as letters.
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen35Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct ModelTypeClass {
  absl::string_view model_type;
  TokenizerClass tokenizer_class;
  bool always = false;  // whatever the folder declares
};
constexpr ModelTypeClass kModelTypes[] = {
    {"bert", TokenizerClass::kBert},
    {"distilbert", TokenizerClass::kBert},
    {"electra", TokenizerClass::kBert},
    {"falcon_mamba", TokenizerClass::kGptNeoX},
    {"gpt2", TokenizerClass::kGpt2},
    {"gpt_neox", TokenizerClass::kGptNeoX},
    {"mamba", TokenizerClass::kGptNeoX},
    {"mamba2", TokenizerClass::kGptNeoX},
    {"olmo", TokenizerClass::kGptNeoX},
    {"rwkv", TokenizerClass::kGptNeoX},
    {"xlstm", TokenizerClass::kGptNeoX},
    {"qwen2", TokenizerClass::kQwen2, true},
    {"qwen3", TokenizerClass::kQwen2},
    {"qwen3_moe", TokenizerClass::kQwen2},
    {"qwen3_next", TokenizerClass::kQwen2},
    {"qwen3_5", TokenizerClass::kQwen35, true},
    {"qwen3_5_text", TokenizerClass::kQwen35},
    {"qwen3_5_moe", TokenizerClass::kQwen35, true},
    {"qwen3_5_moe_text", TokenizerClass::kQwen35, true},
    {"roberta", TokenizerClass::kRoberta},
    // Whatever class these declare, transformers takes the file.
    {"glm", TokenizerClass::kFile, true},
    {"glm4", TokenizerClass::kFile, true},
    {"granite", TokenizerClass::kFile, true},
    {"granitemoe", TokenizerClass::kFile, true},
    {"granitemoehybrid", TokenizerClass::kFile, true},
    {"internlm2", TokenizerClass::kFile, true},
    {"jamba", TokenizerClass::kFile, true},
    {"kimi_linear", TokenizerClass::kFile, true},
    {"mistral", TokenizerClass::kFile, true},
    {"mixtral", TokenizerClass::kFile, true},
    {"modernbert", TokenizerClass::kFile, true},
    {"nemotron", TokenizerClass::kFile, true},
    {"olmo2", TokenizerClass::kFile, true},
    {"olmo_hybrid", TokenizerClass::kFile, true},
    {"persimmon", TokenizerClass::kFile, true},
    {"phi3", TokenizerClass::kFile, true},
    {"stablelm", TokenizerClass::kFile, true},
};

struct NamedClass {
  absl::string_view name;
  TokenizerClass tokenizer_class;
};
// The first of a class is its name.
constexpr NamedClass kClasses[] = {
    {"BertTokenizer", TokenizerClass::kBert},      {"DistilBertTokenizer", TokenizerClass::kBert},
    {"ElectraTokenizer", TokenizerClass::kBert},   {"GPT2Tokenizer", TokenizerClass::kGpt2},
    {"CodeGenTokenizer", TokenizerClass::kGpt2},   {"GPTNeoXTokenizer", TokenizerClass::kGptNeoX},
    {"LlamaTokenizer", TokenizerClass::kLlama},    {"Qwen2Tokenizer", TokenizerClass::kQwen2},
    {"Qwen3_5Tokenizer", TokenizerClass::kQwen35}, {"RobertaTokenizer", TokenizerClass::kRoberta},
};

Json ByteLevel(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json QwenPreTokenizer(const char* pattern, bool add_prefix_space) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            ByteLevel(add_prefix_space, false)}}};
}

Json OptionalBool(std::optional<bool> value) { return value.has_value() ? Json(*value) : Json(); }

Json BertNormalizer(const TokenizerConfig& config) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", config.tokenize_chinese_chars.value_or(true)},
          {"strip_accents", OptionalBool(config.strip_accents)},
          {"lowercase", config.do_lower_case.value_or(true)}};
}

Json LlamaPreTokenizer(const TokenizerConfig& config) {
  const char* scheme = !config.add_prefix_space.value_or(true) ? "never"
                       : config.legacy.value_or(false)         ? "always"
                                                               : "first";
  return {{"type", "Metaspace"},
          {"replacement", Tokenizer::kSpaceSymbol},
          {"prepend_scheme", scheme},
          {"split", false}};
}

Json LlamaDecoder(const TokenizerConfig& config) {
  Json steps = {
      {{"type", "Replace"}, {"pattern", {{"String", Tokenizer::kSpaceSymbol}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (config.add_prefix_space.value_or(true)) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

struct ClassToken {
  const char* name;
  const char* content;
};
std::span<const ClassToken> TokensOf(TokenizerClass tokenizer_class) {
  static constexpr ClassToken kBert[] = {{"unk_token", "[UNK]"},
                                         {"sep_token", "[SEP]"},
                                         {"pad_token", "[PAD]"},
                                         {"cls_token", "[CLS]"},
                                         {"mask_token", "[MASK]"}};
  static constexpr ClassToken kGpt2[] = {{"bos_token", "<|endoftext|>"},
                                         {"eos_token", "<|endoftext|>"},
                                         {"unk_token", "<|endoftext|>"}};
  static constexpr ClassToken kGptNeoX[] = {{"bos_token", "<|endoftext|>"},
                                            {"eos_token", "<|endoftext|>"},
                                            {"unk_token", "<|endoftext|>"},
                                            {"pad_token", "<|padding|>"}};
  static constexpr ClassToken kLlama[] = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  static constexpr ClassToken kQwen[] = {{"eos_token", "<|endoftext|>"},
                                         {"unk_token", "<|endoftext|>"},
                                         {"pad_token", "<|endoftext|>"}};
  static constexpr ClassToken kRoberta[] = {
      {"bos_token", "<s>"},   {"eos_token", "</s>"}, {"unk_token", "<unk>"},  {"sep_token", "</s>"},
      {"pad_token", "<pad>"}, {"cls_token", "<s>"},  {"mask_token", "<mask>"}};
  switch (tokenizer_class) {
    case TokenizerClass::kFile:
      return {};
    case TokenizerClass::kBert:
      return kBert;
    case TokenizerClass::kGpt2:
      return kGpt2;
    case TokenizerClass::kGptNeoX:
      return kGptNeoX;
    case TokenizerClass::kLlama:
      return kLlama;
    case TokenizerClass::kQwen2:
    case TokenizerClass::kQwen35:
      return kQwen;
    case TokenizerClass::kRoberta:
      return kRoberta;
  }
  return {};
}

// The id of the token that `config` names so; none if it names none.
absl::StatusOr<std::optional<int32_t>> IdOf(TokenizerClass tokenizer_class, absl::string_view name,
                                            const TokenizerConfig& config, FindToken find) {
  const std::string spelling = config.Spelling(name).value_or("");
  if (spelling.empty()) return std::nullopt;
  const std::optional<int32_t> id = find(spelling);
  if (id.has_value()) return id;
  return absl::InvalidArgumentError(
      absl::StrCat(TokenizerClassName(tokenizer_class), " puts ", name, " \"", spelling,
                   "\" around texts, which is not in the vocabulary; expected it there, or in a "
                   "list of added tokens with an id"));
}

}  // namespace

TokenizerClass ChooseTokenizerClass(absl::string_view declared, absl::string_view model_type) {
  const auto* const of_type =
      std::find_if(std::begin(kModelTypes), std::end(kModelTypes),
                   [&](const ModelTypeClass& entry) { return entry.model_type == model_type; });
  if (of_type != std::end(kModelTypes) && (of_type->always || declared.empty())) {
    return of_type->tokenizer_class;
  }
  const absl::string_view name = absl::StripSuffix(declared, "Fast");
  for (const NamedClass& entry : kClasses) {
    if (entry.name == name) return entry.tokenizer_class;
  }
  return TokenizerClass::kFile;
}

absl::string_view TokenizerClassName(TokenizerClass tokenizer_class) {
  for (const NamedClass& entry : kClasses) {
    if (entry.tokenizer_class == tokenizer_class) return entry.name;
  }
  return "PreTrainedTokenizerFast";
}

absl::string_view ModelTypeOf(TokenizerClass tokenizer_class) {
  switch (tokenizer_class) {
    case TokenizerClass::kFile:
      return "";
    case TokenizerClass::kBert:
      return "WordPiece";
    default:
      return "BPE";
  }
}

bool ReadsVocabAndMerges(TokenizerClass tokenizer_class) {
  return tokenizer_class == TokenizerClass::kGpt2 || tokenizer_class == TokenizerClass::kGptNeoX ||
         tokenizer_class == TokenizerClass::kQwen2 || tokenizer_class == TokenizerClass::kRoberta;
}

bool ReadsVocabText(TokenizerClass tokenizer_class) {
  return tokenizer_class == TokenizerClass::kBert;
}

void ApplyTokenizerClass(TokenizerClass tokenizer_class, const TokenizerConfig& config,
                         TokenizerJson& file) {
  Json& rest = file.rest;
  Json options = {{"type", ModelTypeOf(tokenizer_class)}};
  const bool add_prefix_space = config.add_prefix_space.value_or(false);
  switch (tokenizer_class) {
    case TokenizerClass::kFile:
      return;
    case TokenizerClass::kBert:
      rest["normalizer"] = BertNormalizer(config);
      rest["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
      rest["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
      options["unk_token"] = config.Spelling("unk_token").value_or("[UNK]");
      options["continuing_subword_prefix"] = "##";
      options["max_input_chars_per_word"] = 100;
      break;
    case TokenizerClass::kGpt2:
    case TokenizerClass::kRoberta:
      rest["normalizer"] = nullptr;
      rest["pre_tokenizer"] = ByteLevel(add_prefix_space, true);
      rest["decoder"] = ByteLevel(true, true);
      break;
    case TokenizerClass::kGptNeoX:
      rest["normalizer"] = {{"type", "NFC"}};
      rest["pre_tokenizer"] = ByteLevel(add_prefix_space, true);
      rest["decoder"] = ByteLevel(true, true);
      break;
    case TokenizerClass::kLlama:
      rest["normalizer"] = nullptr;
      rest["pre_tokenizer"] = LlamaPreTokenizer(config);
      rest["decoder"] = LlamaDecoder(config);
      options["fuse_unk"] = true;
      options["byte_fallback"] = true;
      break;
    case TokenizerClass::kQwen2:
    case TokenizerClass::kQwen35:
      rest["normalizer"] = {{"type", "NFC"}};
      rest["pre_tokenizer"] = QwenPreTokenizer(
          tokenizer_class == TokenizerClass::kQwen2 ? kQwen2Pattern : kQwen35Pattern,
          add_prefix_space);
      rest["decoder"] = ByteLevel(true, true);
      break;
  }
  file.model.options = std::move(options);
}

void AddClassTokens(TokenizerClass tokenizer_class, TokenizerConfig& config) {
  for (const ClassToken& token : TokensOf(tokenizer_class)) {
    if (config.Spelling(token.name).has_value()) continue;
    config.SetNamed({token.name, {.content = token.content, .special = true}});
  }
}

absl::StatusOr<std::optional<PostProcessor>> ClassPostProcessor(TokenizerClass tokenizer_class,
                                                                const TokenizerConfig& config,
                                                                bool file_has_one, FindToken find) {
  if (tokenizer_class == TokenizerClass::kBert || tokenizer_class == TokenizerClass::kRoberta) {
    MNEME_ASSIGN_OR_RETURN(const std::optional<int32_t> cls,
                           IdOf(tokenizer_class, "cls_token", config, find));
    MNEME_ASSIGN_OR_RETURN(const std::optional<int32_t> sep,
                           IdOf(tokenizer_class, "sep_token", config, find));
    if (!cls.has_value() || !sep.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(TokenizerClassName(tokenizer_class),
                       " needs cls_token and sep_token, which are null here"));
    }
    return tokenizer_class == TokenizerClass::kBert ? PostProcessor::Bert(*cls, *sep)
                                                    : PostProcessor::Roberta(*cls, *sep);
  }
  if (tokenizer_class == TokenizerClass::kFile) return std::nullopt;
  // Beside a file the two options are dropped.
  if (tokenizer_class == TokenizerClass::kGptNeoX && file_has_one) return PostProcessor();
  if (file_has_one) return std::nullopt;
  PostProcessor around;
  if (config.add_bos_token.value_or(false)) {
    MNEME_ASSIGN_OR_RETURN(const std::optional<int32_t> bos,
                           IdOf(tokenizer_class, "bos_token", config, find));
    if (bos.has_value()) around = PostProcessor::Prefix(*bos);
  }
  if (config.add_eos_token.value_or(false)) {
    MNEME_ASSIGN_OR_RETURN(const std::optional<int32_t> eos,
                           IdOf(tokenizer_class, "eos_token", config, find));
    if (eos.has_value()) around.AddSuffix(*eos);
  }
  return around;
}

}  // namespace mneme
