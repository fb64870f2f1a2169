#include "server/jinja/parser.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/builtins.h"
#include "server/jinja/lexer.h"

namespace mneme::jinja {
namespace {

// Of expressions and blocks, so that no template can exhaust the stack.
constexpr int kMaxDepth = 100;

using Result = absl::StatusOr<ExpressionPtr>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    MNEME_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (now().kind != Token::kEnd) return Unexpected("the end");
    return body;
  }

 private:
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

  // Up to a block that begins with one of `ends`, whose name is not taken.
  absl::StatusOr<Body> ParseBody(const std::vector<absl::string_view>& ends) {
    const Depth depth(depth_);
    if (depth_ > kMaxDepth) return TooDeep();
    Body body;
    while (now().kind != Token::kEnd) {
      Statement statement;
      statement.line = now().line;
      if (now().kind == Token::kText) {
        statement.text = Next().text;
      } else if (now().kind == Token::kPrintBegin) {
        ++next_;
        statement.kind = Statement::kPrint;
        MNEME_ASSIGN_OR_RETURN(statement.expression, ParseExpression());
        MNEME_RETURN_IF_ERROR(ExpectKind(Token::kPrintEnd, "}}"));
      } else {
        MNEME_RETURN_IF_ERROR(ExpectKind(Token::kBlockBegin, "a block"));
        for (const absl::string_view end : ends) {
          if (IsName(end)) return body;
        }
        MNEME_ASSIGN_OR_RETURN(const std::string name, ExpectName());
        // Marks of the training tools: what is between them is a plain part of the template.
        if (name == "generation" || name == "endgeneration") {
          MNEME_RETURN_IF_ERROR(EndBlock());
          continue;
        }
        MNEME_ASSIGN_OR_RETURN(statement, ParseBlock(name));
      }
      body.push_back(std::move(statement));
    }
    if (!ends.empty()) return Error(absl::StrCat("{% ", ends.front(), " %} is missing"));
    return body;
  }

  absl::Status EndBlock() { return ExpectKind(Token::kBlockEnd, "%}"); }

  absl::StatusOr<Statement> ParseBlock(absl::string_view name) {
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    Statement statement;
    statement.line = now().line;
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return Error(absl::StrCat(name, " outside of a loop"));
      statement.kind = name == "break" ? Statement::kBreak : Statement::kContinue;
      MNEME_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    return Error(absl::StrCat("the block {% ", name, " %} is not supported"));
  }

  absl::StatusOr<Statement> ParseIf() {
    Statement statement;
    statement.kind = Statement::kIf;
    statement.line = now().line;
    while (true) {
      ExpressionPtr condition;
      if (!statement.branches.empty() && TakeName("else")) {
        MNEME_RETURN_IF_ERROR(EndBlock());
        MNEME_ASSIGN_OR_RETURN(Body body, ParseBody({"endif"}));
        statement.branches.emplace_back(nullptr, std::move(body));
      } else if (!statement.branches.empty() && TakeName("endif")) {
        MNEME_RETURN_IF_ERROR(EndBlock());
        return statement;
      } else {
        if (!statement.branches.empty()) ++next_;  // elif
        MNEME_ASSIGN_OR_RETURN(condition, ParseExpression());
        MNEME_RETURN_IF_ERROR(EndBlock());
        MNEME_ASSIGN_OR_RETURN(Body body, ParseBody({"endif", "elif", "else"}));
        statement.branches.emplace_back(std::move(condition), std::move(body));
      }
    }
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement;
    statement.kind = Statement::kFor;
    statement.line = now().line;
    do {
      MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
      statement.names.push_back(std::move(name));
    } while (TakeOperator(","));
    if (!TakeName("in")) return Unexpected("in");
    // Not a whole expression: its "if" is the loop's.
    MNEME_ASSIGN_OR_RETURN(statement.expression, ParseOr());
    if (TakeName("if")) {
      MNEME_ASSIGN_OR_RETURN(statement.condition, ParseExpression());
    }
    if (IsName("recursive")) return Error("recursive loops are not supported");
    MNEME_RETURN_IF_ERROR(EndBlock());
    ++loops_;
    MNEME_ASSIGN_OR_RETURN(statement.body, ParseBody({"endfor", "else"}));
    --loops_;
    if (TakeName("else")) {
      MNEME_RETURN_IF_ERROR(EndBlock());
      MNEME_ASSIGN_OR_RETURN(statement.other, ParseBody({"endfor"}));
    }
    ++next_;
    MNEME_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseSet() {
    Statement statement;
    statement.kind = Statement::kSet;
    statement.line = now().line;
    do {
      MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
      statement.names.push_back(std::move(name));
    } while (TakeOperator(","));
    if (statement.names.size() == 1 && TakeOperator(".")) {
      MNEME_ASSIGN_OR_RETURN(statement.attribute, ExpectName());
    }
    if (TakeOperator("=")) {
      MNEME_ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      MNEME_RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    if (now().kind != Token::kBlockEnd) return Unexpected("\"=\" or %}");
    MNEME_RETURN_IF_ERROR(EndBlock());
    MNEME_ASSIGN_OR_RETURN(statement.body, ParseBody({"endset"}));
    ++next_;
    MNEME_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  // --- Expressions, loosest first ---

  ExpressionPtr Make(Expression::Kind kind, std::string text = "") const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = now().line;
    expression->text = std::move(text);
    return expression;
  }
  ExpressionPtr MakeBinary(std::string op, ExpressionPtr left, ExpressionPtr right) const {
    ExpressionPtr expression = Make(Expression::kBinary, std::move(op));
    expression->operands.push_back(std::move(left));
    expression->operands.push_back(std::move(right));
    return expression;
  }

  // "a, b" without parentheses is a list.
  Result ParseTuple() {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
    if (!IsOperator(",")) return first;
    ExpressionPtr list = Make(Expression::kList);
    list->operands.push_back(std::move(first));
    while (TakeOperator(",")) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr next, ParseExpression());
      list->operands.push_back(std::move(next));
    }
    return list;
  }

  Result ParseExpression() {
    const Depth depth(depth_);
    if (depth_ > kMaxDepth) return TooDeep();
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (TakeName("if")) {
      ExpressionPtr conditional = Make(Expression::kConditional);
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      ExpressionPtr other;
      if (TakeName("else")) {
        MNEME_ASSIGN_OR_RETURN(other, ParseExpression());
      }
      conditional->operands.push_back(std::move(value));
      conditional->operands.push_back(std::move(condition));
      conditional->operands.push_back(std::move(other));
      value = std::move(conditional);
    }
    return value;
  }

  Result ParseOr() {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (TakeName("or")) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      left = MakeBinary("or", std::move(left), std::move(right));
    }
    return left;
  }

  Result ParseAnd() {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (TakeName("and")) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      left = MakeBinary("and", std::move(left), std::move(right));
    }
    return left;
  }

  Result ParseNot() {
    const Depth depth(depth_);
    if (depth_ > kMaxDepth) return TooDeep();
    if (!TakeName("not")) return ParseCompare();
    ExpressionPtr expression = Make(Expression::kUnary, "not");
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
    expression->operands.push_back(std::move(operand));
    return expression;
  }

  std::string TakeComparison() {
    for (const absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (TakeOperator(op)) return std::string(op);
    }
    if (TakeName("in")) return "in";
    if (IsName("not") && tokens_[next_ + 1].kind == Token::kName &&
        tokens_[next_ + 1].text == "in") {
      next_ += 2;
      return "not in";
    }
    return "";
  }

  Result ParseCompare() {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseLevel(0));
    const std::string op = TakeComparison();
    if (op.empty()) return left;
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseLevel(0));
    if (!TakeComparison().empty()) return Error("chains of comparisons are not supported");
    return MakeBinary(op, std::move(left), std::move(right));
  }

  // + -, then ~, then * / // %.
  Result ParseLevel(int level) {
    static const std::vector<std::vector<absl::string_view>>& levels =
        *new std::vector<std::vector<absl::string_view>>{{"+", "-"}, {"~"}, {"*", "//", "/", "%"}};
    if (level == static_cast<int>(levels.size())) return ParseUnary();
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseLevel(level + 1));
    while (true) {
      std::string op;
      for (const absl::string_view candidate : levels[level]) {
        if (op.empty() && TakeOperator(candidate)) op = std::string(candidate);
      }
      if (op.empty()) {
        if (IsOperator("**")) return Error("the operator ** is not supported");
        return left;
      }
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseLevel(level + 1));
      left = MakeBinary(op, std::move(left), std::move(right));
    }
  }

  Result ParseUnary() {
    const Depth depth(depth_);
    if (depth_ > kMaxDepth) return TooDeep();
    for (const absl::string_view op : {"-", "+"}) {
      if (!TakeOperator(op)) continue;
      ExpressionPtr expression = Make(Expression::kUnary, std::string(op));
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary());
      expression->operands.push_back(std::move(operand));
      return expression;
    }
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParsePrimary());
    return ParsePostfix(std::move(value));
  }

  Result ParsePostfix(ExpressionPtr value) {
    while (true) {
      ExpressionPtr outer;
      if (TakeOperator(".")) {
        MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
        outer = Make(Expression::kAttribute, std::move(name));
        outer->operands.push_back(std::move(value));
      } else if (TakeOperator("[")) {
        MNEME_ASSIGN_OR_RETURN(outer, ParseSubscript(std::move(value)));
      } else if (TakeOperator("(")) {
        outer = Make(Expression::kCall);
        outer->operands.push_back(std::move(value));
        MNEME_RETURN_IF_ERROR(ParseArguments(*outer));
      } else if (TakeOperator("|")) {
        MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
        if (!IsFilter(name)) return Error(absl::StrCat("the filter ", name, " is not supported"));
        outer = Make(Expression::kFilter, std::move(name));
        outer->operands.push_back(std::move(value));
        if (TakeOperator("(")) MNEME_RETURN_IF_ERROR(ParseArguments(*outer));
      } else if (TakeName("is")) {
        MNEME_ASSIGN_OR_RETURN(outer, ParseTest(std::move(value)));
      } else {
        return value;
      }
      value = std::move(outer);
    }
  }

  Result ParseTest(ExpressionPtr value) {
    const bool negated = TakeName("not");
    MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
    if (!IsTest(name)) return Error(absl::StrCat("the test ", name, " is not supported"));
    ExpressionPtr test = Make(Expression::kTest, name);
    test->operands.push_back(std::move(value));
    if (TakeOperator("(")) {
      MNEME_RETURN_IF_ERROR(ParseArguments(*test));
    } else if (TestTakesArgument(name)) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
      test->operands.push_back(std::move(argument));
    }
    if (!negated) return test;
    ExpressionPtr expression = Make(Expression::kUnary, "not");
    expression->operands.push_back(std::move(test));
    return expression;
  }

  Result ParseSubscript(ExpressionPtr value) {
    ExpressionPtr parts[3];
    int part = 0;
    while (!TakeOperator("]")) {
      if (TakeOperator(":")) {
        if (++part > 2) return Error("a slice has at most three parts");
        continue;
      }
      if (parts[part] != nullptr) return Unexpected("\"]\"");
      MNEME_ASSIGN_OR_RETURN(parts[part], ParseExpression());
    }
    if (part == 0 && parts[0] == nullptr) return Unexpected("an index");
    ExpressionPtr outer = Make(part > 0 ? Expression::kSlice : Expression::kItem);
    outer->operands.push_back(std::move(value));
    for (ExpressionPtr& each : parts) {
      if (part > 0 || each != nullptr) outer->operands.push_back(std::move(each));
    }
    return outer;
  }

  absl::Status ParseArguments(Expression& call) {
    while (!TakeOperator(")")) {
      if (now().kind == Token::kName && tokens_[next_ + 1].kind == Token::kOperator &&
          tokens_[next_ + 1].text == "=") {
        std::string name = Next().text;
        ++next_;
        MNEME_ASSIGN_OR_RETURN(ExpressionPtr argument, ParseExpression());
        call.named.emplace_back(std::move(name), std::move(argument));
      } else {
        MNEME_ASSIGN_OR_RETURN(ExpressionPtr argument, ParseExpression());
        call.operands.push_back(std::move(argument));
      }
      if (!TakeOperator(",") && !IsOperator(")")) return Unexpected("\",\" or \")\"");
    }
    return absl::OkStatus();
  }

  ExpressionPtr Literal(Value value) const {
    ExpressionPtr expression = Make(Expression::kLiteral);
    expression->value = std::move(value);
    return expression;
  }

  Result ParsePrimary() {
    const Token token = now();
    if (token.kind == Token::kString) {
      std::string text;
      while (now().kind == Token::kString) text += Next().text;  // neighbours are one text
      return Literal(std::move(text));
    }
    if (token.kind == Token::kInt) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(token.text, &number)) return Error("the number is too large");
      ++next_;
      return Literal(number);
    }
    if (token.kind == Token::kFloat) {
      ++next_;
      return Literal(strtod(token.text.c_str(), nullptr));
    }
    if (token.kind == Token::kName) {
      ++next_;
      if (token.text == "true" || token.text == "True") return Literal(true);
      if (token.text == "false" || token.text == "False") return Literal(false);
      if (token.text == "none" || token.text == "None") return Literal(None{});
      return Make(Expression::kName, token.text);
    }
    if (TakeOperator("(")) return ParseParenthesized();
    if (TakeOperator("[")) return ParseElements("]");
    if (TakeOperator("{")) return ParseMap();
    return Unexpected("an expression");
  }

  Result ParseParenthesized() {
    if (IsOperator(")")) return ParseElements(")");
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    if (TakeOperator(")")) return value;
    MNEME_RETURN_IF_ERROR(Expect(","));
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr list, ParseElements(")"));
    list->operands.insert(list->operands.begin(), std::move(value));
    return list;
  }

  Result ParseElements(absl::string_view end) {
    ExpressionPtr list = Make(Expression::kList);
    while (!TakeOperator(end)) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr element, ParseExpression());
      list->operands.push_back(std::move(element));
      if (!TakeOperator(",") && !IsOperator(end)) return Unexpected(absl::StrCat("\"", end, "\""));
    }
    return list;
  }

  Result ParseMap() {
    ExpressionPtr map = Make(Expression::kMap);
    while (!TakeOperator("}")) {
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
      MNEME_RETURN_IF_ERROR(Expect(":"));
      MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      map->operands.push_back(std::move(key));
      map->operands.push_back(std::move(value));
      if (!TakeOperator(",") && !IsOperator("}")) return Unexpected("\"}\"");
    }
    return map;
  }

  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Body> Parse(absl::string_view source) {
  MNEME_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace mneme::jinja
