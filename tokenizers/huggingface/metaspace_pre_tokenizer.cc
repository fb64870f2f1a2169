#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tokenizers/huggingface/delimiter_splitter.h"
#include "tokenizers/huggingface/pre_tokenizers.h"

namespace mneme {
namespace {

// When the replacement of a space is put in front of a text that has none there.
enum class PrependScheme { kAlways, kFirst, kNever };

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(char32_t replacement, PrependScheme scheme, bool split)
      : replacement_(replacement), scheme_(scheme), split_(split) {
    AppendUtf8(replacement, text_of_replacement_);
  }

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(2 * text.size()); !status.ok()) return status;
    std::string replaced = absl::StrReplaceAll(text, {{" ", text_of_replacement_}});
    const bool wanted =
        !context.continuation && (scheme_ == PrependScheme::kAlways ||
                                  (scheme_ == PrependScheme::kFirst && context.at_text_start));
    if (wanted && !absl::StartsWith(replaced, text_of_replacement_)) {
      replaced.insert(0, text_of_replacement_);
    }
    if (!split_) return sink(replaced, context);
    return SplitAtCharacters(
        replaced, context, DelimiterBehavior::kMergedWithNext,
        [this](char32_t c) { return c == replacement_; }, sink);
  }

 private:
  const char32_t replacement_;
  const PrependScheme scheme_;
  const bool split_;
  std::string text_of_replacement_;
};

}  // namespace

PreTokenizerOr MakeMetaspacePreTokenizer(const StepOptions& options) {
  const auto replacement = options.Character("replacement");
  if (!replacement.ok()) return replacement.status();
  const auto name = options.Text("prepend_scheme", "always");
  if (!name.ok()) return name.status();
  PrependScheme scheme = PrependScheme::kAlways;
  if (*name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (*name == "never") {
    scheme = PrependScheme::kNever;
  } else if (*name != "always") {
    return options.Error("prepend_scheme", "always, first or never");
  }
  // Files had this before there was a scheme. The package, too, refuses one that contradicts it.
  const auto add_prefix_space = options.Bool("add_prefix_space", true);
  if (!add_prefix_space.ok()) return add_prefix_space.status();
  if (!*add_prefix_space && scheme != PrependScheme::kNever) {
    return options.Error("add_prefix_space", "true, or a prepend_scheme never beside it");
  }
  const auto split = options.Bool("split", true);
  if (!split.ok()) return split.status();
  return std::make_unique<MetaspacePreTokenizer>(*replacement, scheme, *split);
}

}  // namespace mneme
