#include "server/jinja/expression_parser.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "server/jinja/builtins.h"

namespace mneme::jinja {

ExpressionPtr ExpressionParser::Make(Expression::Kind kind, std::string text) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = now().line;
  expression->text = std::move(text);
  return expression;
}

ExpressionParser::Result ExpressionParser::Checked(ExpressionPtr whole) const {
  for (const ExpressionPtr& operand : whole->operands) {
    if (operand != nullptr) whole->depth = std::max(whole->depth, operand->depth + 1);
  }
  for (const auto& [name, operand] : whole->named) {
    whole->depth = std::max(whole->depth, operand->depth + 1);
  }
  if (whole->depth <= kMaxChain) return whole;
  return Error(absl::StrCat("a chain or nest of more than ", kMaxChain, " operations"));
}

ExpressionParser::Result ExpressionParser::MakeBinary(std::string op, ExpressionPtr left,
                                                      ExpressionPtr right) const {
  ExpressionPtr expression = Make(Expression::kBinary, std::move(op));
  expression->operands.push_back(std::move(left));
  expression->operands.push_back(std::move(right));
  return Checked(std::move(expression));
}

ExpressionParser::Result ExpressionParser::ParseTuple() {
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
  if (!IsOperator(",")) return first;
  ExpressionPtr list = Make(Expression::kList);
  list->operands.push_back(std::move(first));
  while (TakeOperator(",")) {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr next, ParseExpression());
    list->operands.push_back(std::move(next));
  }
  return Checked(std::move(list));
}

ExpressionParser::Result ExpressionParser::ParseExpression() {
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
    MNEME_ASSIGN_OR_RETURN(value, Checked(std::move(conditional)));
  }
  return value;
}

ExpressionParser::Result ExpressionParser::ParseOr() {
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
  while (TakeName("or")) {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
    MNEME_ASSIGN_OR_RETURN(left, MakeBinary("or", std::move(left), std::move(right)));
  }
  return left;
}

ExpressionParser::Result ExpressionParser::ParseAnd() {
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
  while (TakeName("and")) {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
    MNEME_ASSIGN_OR_RETURN(left, MakeBinary("and", std::move(left), std::move(right)));
  }
  return left;
}

ExpressionParser::Result ExpressionParser::ParseNot() {
  const Depth depth(depth_);
  if (depth_ > kMaxDepth) return TooDeep();
  if (!TakeName("not")) return ParseCompare();
  ExpressionPtr expression = Make(Expression::kUnary, "not");
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  expression->operands.push_back(std::move(operand));
  return Checked(std::move(expression));
}

std::string ExpressionParser::TakeComparison() {
  for (const absl::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (TakeOperator(op)) return std::string(op);
  }
  if (TakeName("in")) return "in";
  if (IsName("not") && tokens_[next_ + 1].kind == Token::kName && tokens_[next_ + 1].text == "in") {
    next_ += 2;
    return "not in";
  }
  return "";
}

ExpressionParser::Result ExpressionParser::ParseCompare() {
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr left, ParseLevel(0));
  const std::string op = TakeComparison();
  if (op.empty()) return left;
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr right, ParseLevel(0));
  if (!TakeComparison().empty()) return Error("chains of comparisons are not supported");
  return MakeBinary(op, std::move(left), std::move(right));
}

ExpressionParser::Result ExpressionParser::ParseLevel(int level) {
  static const std::vector<std::vector<absl::string_view>>& levels =
      *new std::vector<std::vector<absl::string_view>>{{"+", "-"}, {"~"}, {"*", "//", "/", "%"}};
  if (level == static_cast<int>(levels.size())) return ParseUnary(true);
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
    MNEME_ASSIGN_OR_RETURN(left, MakeBinary(op, std::move(left), std::move(right)));
  }
}

// Filters and tests take the sign along: -3 | abs is 3.
ExpressionParser::Result ExpressionParser::ParseUnary(bool with_filters) {
  const Depth depth(depth_);
  if (depth_ > kMaxDepth) return TooDeep();
  for (const absl::string_view op : {"-", "+"}) {
    if (!TakeOperator(op)) continue;
    ExpressionPtr expression = Make(Expression::kUnary, std::string(op));
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(false));
    expression->operands.push_back(std::move(operand));
    MNEME_ASSIGN_OR_RETURN(expression, Checked(std::move(expression)));
    return ParsePostfix(std::move(expression), with_filters);
  }
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParsePrimary());
  return ParsePostfix(std::move(value), with_filters);
}

ExpressionParser::Result ExpressionParser::ParsePostfix(ExpressionPtr value, bool with_filters) {
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
    } else if (with_filters && TakeOperator("|")) {
      MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
      if (!IsFilter(name)) return Error(absl::StrCat("the filter ", name, " is not supported"));
      outer = Make(Expression::kFilter, std::move(name));
      outer->operands.push_back(std::move(value));
      if (TakeOperator("(")) MNEME_RETURN_IF_ERROR(ParseArguments(*outer));
    } else if (with_filters && TakeName("is")) {
      MNEME_ASSIGN_OR_RETURN(outer, ParseTest(std::move(value)));
    } else {
      return value;
    }
    MNEME_ASSIGN_OR_RETURN(value, Checked(std::move(outer)));
  }
}

ExpressionParser::Result ExpressionParser::ParseTest(ExpressionPtr value) {
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
  MNEME_ASSIGN_OR_RETURN(test, Checked(std::move(test)));
  ExpressionPtr expression = Make(Expression::kUnary, "not");
  expression->operands.push_back(std::move(test));
  return expression;
}

ExpressionParser::Result ExpressionParser::ParseSubscript(ExpressionPtr value) {
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

absl::Status ExpressionParser::ParseArguments(Expression& call) {
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

ExpressionPtr ExpressionParser::Literal(Value value) const {
  ExpressionPtr expression = Make(Expression::kLiteral);
  expression->value = std::move(value);
  return expression;
}

ExpressionParser::Result ExpressionParser::ParsePrimary() {
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

ExpressionParser::Result ExpressionParser::ParseParenthesized() {
  if (IsOperator(")")) return ParseElements(")");
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
  if (TakeOperator(")")) return value;
  MNEME_RETURN_IF_ERROR(Expect(","));
  MNEME_ASSIGN_OR_RETURN(ExpressionPtr list, ParseElements(")"));
  list->operands.insert(list->operands.begin(), std::move(value));
  return Checked(std::move(list));
}

ExpressionParser::Result ExpressionParser::ParseElements(absl::string_view end) {
  ExpressionPtr list = Make(Expression::kList);
  while (!TakeOperator(end)) {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr element, ParseExpression());
    list->operands.push_back(std::move(element));
    if (!TakeOperator(",") && !IsOperator(end)) return Unexpected(absl::StrCat("\"", end, "\""));
  }
  return Checked(std::move(list));
}

ExpressionParser::Result ExpressionParser::ParseMap() {
  ExpressionPtr map = Make(Expression::kMap);
  while (!TakeOperator("}")) {
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    MNEME_RETURN_IF_ERROR(Expect(":"));
    MNEME_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    map->operands.push_back(std::move(key));
    map->operands.push_back(std::move(value));
    if (!TakeOperator(",") && !IsOperator("}")) return Unexpected("\"}\"");
  }
  return Checked(std::move(map));
}

}  // namespace mneme::jinja
