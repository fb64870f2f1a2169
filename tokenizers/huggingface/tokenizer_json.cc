#include "tokenizers/huggingface/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/json_scanner.h"
#include "tokenizers/huggingface/reference_number.h"
#include "tokenizers/huggingface/value_builder.h"

namespace mneme {
namespace {

using Json = nlohmann::json;
using Model = TokenizerJson::Model;

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr absl::string_view kModel = "model";
constexpr absl::string_view kVocab = "vocab";
constexpr absl::string_view kMerges = "merges";

// Where the parser gives up on a text that the scanner did not take.
class ErrorPosition final : public Json::json_sax_t {
 public:
  size_t position() const { return position_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    position_ = position;
    return false;
  }

 private:
  size_t position_ = 0;
};

absl::Status NotJson(absl::string_view text, absl::string_view path, size_t scanned) {
  ErrorPosition finder;
  // It takes a byte order mark, which is not JSON's.
  const bool is_taken = Json::sax_parse(text.begin(), text.end(), &finder);
  const JsonError error =
      is_taken ? JsonError{scanned, "unexpected bytes"} : ExplainJsonError(text, finder.position());
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", LineAndColumn(text, error.begin), ": not valid JSON: ", error.what));
}

// Takes what JsonScanner finds. The text is tokenizer.json, or vocab.json, which is one value of
// it.
class Reader {
 public:
  Reader(absl::string_view text, absl::string_view path, bool is_vocab_alone)
      : path_(path), builder_(path), is_vocab_alone_(is_vocab_alone) {
    // Room that is not used costs nothing; moving what has grown would.
    constexpr size_t kLeastBytesOfEntry = 16, kMostExpected = 1 << 20;
    const size_t expected = std::min(text.size() / kLeastBytesOfEntry, kMostExpected);
    model().vocab.reserve(expected);
    if (!is_vocab_alone) model().merges.reserve(expected);
  }

  TokenizerJson TakeResult() { return std::move(result_); }
  const absl::Status& status() const { return status_; }
  bool has_model() const { return has_model_; }

  bool Null() { return Scalar(nullptr); }
  bool Bool(bool value) { return Scalar(value); }
  bool Integer(uint64_t value) {
    if (state_ == State::kVocabObject) return Id(value);
    return Scalar(value);
  }
  bool Number(absl::string_view text, double value) {
    if (state_ == State::kVocabPair) return Score(ReferenceNumber(text));
    int64_t integer = 0;
    if (absl::SimpleAtoi(text, &integer)) return Scalar(integer);
    return Scalar(value);
  }
  bool String(absl::string_view value) {
    switch (state_) {
      case State::kMerges:
        return MergeText(value);
      case State::kMergePair:
        return MergeHalf(value);
      case State::kVocabPair:
        if (elements_ == 0) {
          model().vocab.push_back({Keep(value), 0, 0.0});
          ++elements_;
          return true;
        }
        [[fallthrough]];
      default:
        return Scalar(std::string(value));
    }
  }

  bool Key(absl::string_view name) {
    switch (state_) {
      case State::kVocabObject:
        model().vocab.push_back({Keep(name), 0, 0.0});
        return true;
      case State::kTree:
        return Allows(builder_.Key(std::string(name)));
      default:
        break;
    }
    key_.assign(name.data(), name.size());
    const bool is_model = state_ == State::kModel;
    const bool is_known = is_model ? model().options.contains(key_) ||
                                         (name == kVocab && model().has_vocab) ||
                                         (name == kMerges && model().has_merges)
                                   : result_.rest.contains(key_) || (name == kModel && has_model_);
    if (!is_known) return true;
    return Fail(absl::StrCat(is_model ? "model: " : "", "key ", Shown(key_), " occurs twice"));
  }

  bool BeginObject() {
    switch (state_) {
      case State::kStart:
        if (is_vocab_alone_) return BeginVocab(State::kVocabObject);
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (key_ == kModel) {
          has_model_ = true;
          state_ = State::kModel;
          return true;
        }
        return BeginTree(Json::object());
      case State::kModel:
        if (key_ == kVocab) return BeginVocab(State::kVocabObject);
        if (key_ == kMerges) return Unexpected("an object");
        return BeginTree(Json::object());
      case State::kTree:
        return Allows(builder_.Open(Json::object()));
      default:
        return Unexpected("an object");
    }
  }
  bool EndObject() {
    switch (state_) {
      case State::kVocabObject:
        state_ = is_vocab_alone_ ? State::kStart : State::kModel;
        break;
      case State::kModel:
        state_ = State::kTop;
        break;
      case State::kTree:
        builder_.Close();
        EndTree();
        break;
      default:
        break;
    }
    return true;
  }

  bool BeginList() {
    switch (state_) {
      case State::kTop:
        return key_ == kModel ? Unexpected("a list") : BeginTree(Json::array());
      case State::kModel:
        if (key_ == kVocab) {
          model().has_scores = true;
          return BeginVocab(State::kVocabList);
        }
        if (key_ == kMerges) {
          model().has_merges = true;
          state_ = State::kMerges;
          return true;
        }
        return BeginTree(Json::array());
      case State::kTree:
        return Allows(builder_.Open(Json::array()));
      case State::kVocabList:
        state_ = State::kVocabPair;
        elements_ = 0;
        return true;
      case State::kMerges:
        if (merges_kind_ == MergesKind::kTexts) return Unexpected("a list after strings");
        merges_kind_ = MergesKind::kPairs;
        model().merges.emplace_back();
        state_ = State::kMergePair;
        elements_ = 0;
        return true;
      default:
        return Unexpected("a list");
    }
  }
  bool EndList() {
    switch (state_) {
      case State::kVocabPair:
        if (elements_ != 2) return Unexpected(absl::StrCat("a list of ", elements_));
        if (static_cast<int64_t>(model().vocab.size()) > kMaxId) {
          return Unexpected("one token too many");
        }
        model().vocab.back().id = static_cast<int32_t>(model().vocab.size() - 1);
        state_ = State::kVocabList;
        break;
      case State::kMergePair:
        if (elements_ != 2) return Unexpected(absl::StrCat("a list of ", elements_));
        state_ = State::kMerges;
        break;
      case State::kVocabList:
      case State::kMerges:
        state_ = State::kModel;
        break;
      case State::kTree:
        builder_.Close();
        EndTree();
        break;
      default:
        break;
    }
    return true;
  }

 private:
  enum class State {
    kStart,        // outside of everything
    kTop,          // in the file's object
    kModel,        // in "model"
    kTree,         // in a value of rest or options
    kVocabObject,  // in "vocab"
    kVocabList,
    kVocabPair,  // in an entry of it
    kMerges,     // in "merges"
    kMergePair,
  };
  enum class MergesKind { kUnknown, kTexts, kPairs };

  Model& model() { return result_.model; }
  absl::string_view Keep(absl::string_view text) { return model().texts.Add(text); }

  bool Allows(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return status_.ok();
  }
  bool Fail(absl::string_view what) {
    return Allows(absl::InvalidArgumentError(absl::StrCat(path_, ": ", what)));
  }

  // `found` is not what belongs here.
  bool Unexpected(absl::string_view found) {
    const absl::string_view model_prefix = is_vocab_alone_ ? "" : "model: ";
    switch (state_) {
      case State::kStart:
        return Fail(absl::StrCat("is ", found, ", expected an object",
                                 is_vocab_alone_ ? " from tokens to ids" : ""));
      case State::kTop:
        return Fail(absl::StrCat("key \"", kModel, "\" is ", found, ", expected an object"));
      case State::kModel:
        return Fail(absl::StrCat(
            "model: key \"", key_, "\" is ", found,
            key_ == kVocab ? ", expected an object from tokens to ids or a list of [token, score]"
                           : ", expected a list of merges"));
      case State::kVocabObject:
        return Fail(absl::StrCat(model_prefix, "vocab: token ",
                                 Shown(std::string(model().vocab.back().text)), " is ", found,
                                 ", expected an id from 0 to ", kMaxId));
      case State::kVocabList:
        return Fail(absl::StrCat(model_prefix, "vocab[", model().vocab.size(), "] is ", found,
                                 ", expected [token, score]"));
      case State::kVocabPair:
        return Fail(absl::StrCat(model_prefix, "vocab[",
                                 model().vocab.size() - (elements_ == 0 ? 0 : 1), "] holds ", found,
                                 ", expected [token, score]"));
      case State::kMerges:
        return Fail(absl::StrCat(
            model_prefix, "merges[",
            merges_kind_ == MergesKind::kPairs ? static_cast<int64_t>(model().merges.size())
                                               : items_,
            "] is ", found,
            merges_kind_ == MergesKind::kTexts ? ", expected a string as the others are"
            : merges_kind_ == MergesKind::kPairs
                ? ", expected a pair of tokens as the others are"
                : ", expected a pair of tokens, or a string of both"));
      case State::kMergePair:
        return Fail(absl::StrCat(model_prefix, "merges[", model().merges.size() - 1, "] holds ",
                                 found, ", expected two tokens"));
      case State::kTree:
        break;  // holds whatever it likes
    }
    return false;
  }

  // Any value without others inside that has no place of its own.
  bool Scalar(Json value) {
    switch (state_) {
      case State::kTop:
        if (key_ == kModel) return Unexpected(Shown(value));
        builder_.Begin(result_.rest[key_], Shown(key_));
        return Allows(builder_.Add(std::move(value)));
      case State::kModel:
        if (key_ == kVocab || key_ == kMerges) return Unexpected(Shown(value));
        builder_.Begin(model().options[key_], absl::StrCat("model: ", Shown(key_)));
        return Allows(builder_.Add(std::move(value)));
      case State::kTree:
        return Allows(builder_.Add(std::move(value)));
      case State::kVocabPair:
        if (value.is_number() && elements_ == 1) return Score(value.get<double>());
        return Unexpected(Shown(value));
      default:
        return Unexpected(Shown(value));
    }
  }

  bool BeginTree(Json empty) {
    tree_in_model_ = state_ == State::kModel;
    if (tree_in_model_) {
      builder_.Begin(model().options[key_], absl::StrCat("model: ", Shown(key_)));
    } else {
      builder_.Begin(result_.rest[key_], Shown(key_));
    }
    state_ = State::kTree;
    return Allows(builder_.Open(std::move(empty)));
  }
  void EndTree() {
    if (builder_.is_complete()) state_ = tree_in_model_ ? State::kModel : State::kTop;
  }

  bool BeginVocab(State state) {
    model().has_vocab = true;
    state_ = state;
    return true;
  }
  bool Id(uint64_t id) {
    if (id > static_cast<uint64_t>(kMaxId)) return Unexpected(Shown(id));
    model().vocab.back().id = static_cast<int32_t>(id);
    return true;
  }
  bool Score(double score) {
    if (elements_ != 1) return Unexpected("a number out of place");
    ++elements_;
    model().vocab.back().score = score;
    return true;
  }

  bool MergeText(absl::string_view text) {
    if (merges_kind_ == MergesKind::kPairs) return Unexpected(Shown(std::string(text)));
    merges_kind_ = MergesKind::kTexts;
    ++items_;
    if (absl::StartsWith(text, "#version")) return true;  // the head line of merges.txt
    const absl::StatusOr<Model::Merge> merge = ParseMerge(Keep(text));
    if (!merge.ok()) {
      return Fail(absl::StrCat("model: merges[", items_ - 1, "] ", merge.status().message()));
    }
    model().merges.push_back(*merge);
    return true;
  }
  bool MergeHalf(absl::string_view text) {
    if (elements_ >= 2) return Unexpected("more than two");
    Model::Merge& merge = model().merges.back();
    (elements_ == 0 ? merge.left : merge.right) = Keep(text);
    ++elements_;
    return true;
  }

  const std::string path_;
  ValueBuilder builder_;
  const bool is_vocab_alone_;

  TokenizerJson result_;
  State state_ = State::kStart;
  std::string key_;  // of the value under way, in kTop and kModel
  bool has_model_ = false;
  bool tree_in_model_ = false;
  int elements_ = 0;   // so far, of a pair
  int64_t items_ = 0;  // so far, of merges that are strings
  MergesKind merges_kind_ = MergesKind::kUnknown;
  absl::Status status_;
};

absl::StatusOr<TokenizerJson> Read(absl::string_view text, absl::string_view path,
                                   bool is_vocab_alone) {
  MNEME_RETURN_IF_ERROR(CheckTokenizerFileSize(text, path));
  Reader reader(text, path, is_vocab_alone);
  JsonScanner scanner(text);
  const JsonScanner::Result scanned = scanner.Scan(reader);
  MNEME_RETURN_IF_ERROR(reader.status());
  if (scanned != JsonScanner::Result::kDone) return NotJson(text, path, scanner.position());
  if (!is_vocab_alone && !reader.has_model()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no key \"", kModel, "\", expected that of a tokenizer"));
  }
  return reader.TakeResult();
}

}  // namespace

absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text, absl::string_view path) {
  return Read(text, path, /*is_vocab_alone=*/false);
}

absl::StatusOr<Model> ParseVocabJson(absl::string_view text, absl::string_view path) {
  MNEME_ASSIGN_OR_RETURN(TokenizerJson read, Read(text, path, /*is_vocab_alone=*/true));
  return std::move(read.model);
}

absl::StatusOr<Model::Merge> ParseMerge(absl::string_view text) {
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos || text.find(' ', space + 1) != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", Shown(std::string(text)), ", expected two tokens with one space between them"));
  }
  return Model::Merge{.left = text.substr(0, space), .right = text.substr(space + 1)};
}

absl::Status CheckTokenizerFileSize(absl::string_view text, absl::string_view path) {
  if (static_cast<int64_t>(text.size()) <= kMaxTokenizerFileBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", text.size(), " bytes, expected at most ", kMaxTokenizerFileBytes));
}

}  // namespace mneme
