// Tokens around texts: BOS, [CLS], [SEP].
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mneme {

struct PostProcessor {
  struct Item {
    enum class Kind : uint8_t { kText, kPair, kToken };
    Kind kind = Kind::kText;
    int32_t id = 0;       // kToken
    int32_t type_id = 0;  // segment of the token, or of all tokens of the text
  };
  std::vector<Item> single = {{Item::Kind::kText}};                           // one kText
  std::vector<Item> pair = {{Item::Kind::kText}, {Item::Kind::kPair, 0, 1}};  // one of each

  static Item Token(int32_t id, int32_t type_id = 0) { return {Item::Kind::kToken, id, type_id}; }

  // Each text behind `id`.
  static PostProcessor Prefix(int32_t id) {
    return {.single = {Token(id), {Item::Kind::kText}},
            .pair = {Token(id), {Item::Kind::kText}, Token(id, 1), {Item::Kind::kPair, 0, 1}}};
  }
  // And in front of one: of both texts, in a pair.
  void AddSuffix(int32_t id) {
    single.push_back(Token(id));
    const auto behind_text =
        std::find_if(pair.begin(), pair.end(),
                     [](const Item& item) { return item.kind == Item::Kind::kText; }) +
        1;
    pair.insert(behind_text, Token(id));
    pair.push_back(Token(id, 1));
  }
  // [CLS] A [SEP] B [SEP]
  static PostProcessor Bert(int32_t cls, int32_t sep) {
    const Item text = {Item::Kind::kText};
    return {.single = {Token(cls), text, Token(sep)},
            .pair = {Token(cls), text, Token(sep), {Item::Kind::kPair, 0, 1}, Token(sep, 1)}};
  }
  // <s> A </s> </s> B </s>: no segments, and twice what separates them.
  static PostProcessor Roberta(int32_t cls, int32_t sep) {
    const Item text = {Item::Kind::kText};
    return {.single = {Token(cls), text, Token(sep)},
            .pair = {Token(cls), text, Token(sep), Token(sep), {Item::Kind::kPair}, Token(sep)}};
  }
};

}  // namespace mneme
