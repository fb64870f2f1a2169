#include "tokenizers/huggingface/normalizer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/normalizers.h"
#include "tokenizers/huggingface/step_options.h"
#include "tokenizers/huggingface/text_steps.h"

namespace mneme {
namespace {

constexpr int kMaxNormalizerNesting = 16;

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}

  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, SectionContext context,
                                              WorkMeter& meter,
                                              std::string& storage) const override {
    TextSteps steps(text, storage);
    for (const auto& step : steps_) {
      auto next = step->Normalize(steps.text(), context, meter, steps.free());
      if (!next.ok()) return next;
      steps.Set(*next);
    }
    return steps.Finish();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

NormalizerOr MakeNormalizerAt(const nlohmann::json& config, absl::string_view path,
                              absl::string_view key, int depth);

NormalizerOr MakeSequence(const StepOptions& options, int depth) {
  if (depth > kMaxNormalizerNesting) return options.Error("", "sequences no deeper in one another");
  const auto list = options.List("normalizers");
  if (!list.ok()) return list.status();
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; i < (*list)->size(); ++i) {
    auto step =
        MakeNormalizerAt((**list)[i], options.path(),
                         absl::StrCat(options.KeyOf("normalizers"), "[", i, "]"), depth + 1);
    if (!step.ok()) return step;
    steps.push_back(*std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

NormalizerOr MakeNormalizerAt(const nlohmann::json& config, absl::string_view path,
                              absl::string_view key, int depth) {
  const StepOptions options(config, path, key);
  if (!config.is_object()) return options.Error("", "an object");
  const auto type = options.Text("type");
  if (!type.ok()) return type.status();
  if (*type == "Sequence") return MakeSequence(options, depth);
  if (*type == "NFC") return MakeNormalFormNormalizer(NormalForm::kNfc);
  if (*type == "NFD") return MakeNormalFormNormalizer(NormalForm::kNfd);
  if (*type == "NFKC") return MakeNormalFormNormalizer(NormalForm::kNfkc);
  if (*type == "NFKD") return MakeNormalFormNormalizer(NormalForm::kNfkd);
  if (*type == "Lowercase") return MakeLowercaseNormalizer();
  if (*type == "StripAccents") return MakeStripAccentsNormalizer();
  if (*type == "Nmt") return MakeNmtNormalizer();
  if (*type == "Strip") return MakeStripNormalizer(options);
  if (*type == "Prepend") return MakePrependNormalizer(options);
  if (*type == "Replace") return MakeReplaceNormalizer(options);
  if (*type == "ByteLevel") return MakeByteLevelNormalizer();
  if (*type == "BertNormalizer") return MakeBertNormalizer(options);
  if (*type == "Precompiled") return MakePrecompiledNormalizer(options);
  return absl::UnimplementedError(
      options
          .Error("type",
                 "one of Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
                 "BertNormalizer, Replace, Prepend, ByteLevel, Precompiled, Nmt")
          .message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> MakeNormalizer(const nlohmann::json& config,
                                                           absl::string_view path) {
  return MakeNormalizerAt(config, path, "normalizer", 0);
}

}  // namespace mneme
