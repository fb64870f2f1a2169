// Expressions of a template, and the tokens that all parsing goes through.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/jinja/ast.h"
#include "server/jinja/lexer.h"

namespace mneme::jinja {

// Recursive descent, bounded: no template can exhaust the stack.
class ExpressionParser {
 public:
  using Result = absl::StatusOr<ExpressionPtr>;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // How deep expressions and blocks may be nested in the source.
  static constexpr int kMaxDepth = 100;
  // How deep the evaluation of an expression may go: each operator of a chain is one level.
  static constexpr int kMaxChain = 300;

  // Counts nesting for as long as it lives.
  struct Depth {
    explicit Depth(int& depth) : depth(++depth) {}
    ~Depth() { --depth; }
    int& depth;
  };

  const Token& now() const { return tokens_[next_]; }
  const Token& Next() { return tokens_[next_++]; }
  bool IsOperator(absl::string_view text) const {
    return now().kind == Token::kOperator && now().text == text;
  }
  bool IsName(absl::string_view text) const {
    return now().kind == Token::kName && now().text == text;
  }
  bool TakeOperator(absl::string_view text) {
    if (!IsOperator(text)) return false;
    ++next_;
    return true;
  }
  bool TakeName(absl::string_view text) {
    if (!IsName(text)) return false;
    ++next_;
    return true;
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", now().line, ": ", what));
  }
  absl::Status Unexpected(absl::string_view expected) const {
    const std::string found = now().kind == Token::kEnd ? "the end"
                              : now().text.empty()      ? "a tag's border"
                                                        : absl::StrCat("\"", now().text, "\"");
    return Error(absl::StrCat("expected ", expected, ", found ", found));
  }
  absl::Status Expect(absl::string_view op) {
    return TakeOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("\"", op, "\""));
  }
  absl::Status ExpectKind(Token::Kind kind, absl::string_view what) {
    if (now().kind != kind) return Unexpected(what);
    ++next_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (now().kind != Token::kName) return Unexpected("a name");
    return Next().text;
  }
  absl::Status TooDeep() const { return Error("nested too deeply"); }

  // Loosest first.
  Result ParseExpression();
  // "a, b" without parentheses is a list.
  Result ParseTuple();
  Result ParseOr();

  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;

 private:
  ExpressionPtr Make(Expression::Kind kind, std::string text = "") const;
  // `whole` with all of its operands, unless that is deeper than kMaxChain.
  Result Checked(ExpressionPtr whole) const;
  Result MakeBinary(std::string op, ExpressionPtr left, ExpressionPtr right) const;
  Result ParseAnd();
  Result ParseNot();
  std::string TakeComparison();
  Result ParseCompare();
  // + -, then ~, then * / // %.
  Result ParseLevel(int level);
  Result ParseUnary(bool with_filters);
  Result ParsePostfix(ExpressionPtr value, bool with_filters);
  Result ParseTest(ExpressionPtr value);
  Result ParseSubscript(ExpressionPtr value);
  absl::Status ParseArguments(Expression& call);
  ExpressionPtr Literal(Value value) const;
  Result ParsePrimary();
  Result ParseParenthesized();
  Result ParseElements(absl::string_view end);
  Result ParseMap();
};

}  // namespace mneme::jinja
