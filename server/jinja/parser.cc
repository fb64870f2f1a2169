#include "server/jinja/parser.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/expression_parser.h"
#include "server/jinja/lexer.h"

namespace mneme::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::StatusOr<Body> Run() {
    MNEME_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (now().kind != Token::kEnd) return Unexpected("the end");
    return body;
  }

 private:
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
    if (name == "macro") return ParseMacro();
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
    MNEME_ASSIGN_OR_RETURN(statement.body, ParseNested({"endfor", "else"}));
    --loops_;
    if (TakeName("else")) {
      MNEME_RETURN_IF_ERROR(EndBlock());
      MNEME_ASSIGN_OR_RETURN(statement.other, ParseNested({"endfor"}));
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
    MNEME_ASSIGN_OR_RETURN(statement.body, ParseNested({"endset"}));
    ++next_;
    MNEME_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::StatusOr<Statement> ParseMacro() {
    if (nested_ > 0) return Error("a macro inside of a loop, a macro or a set is not supported");
    Statement statement;
    statement.kind = Statement::kMacro;
    statement.line = now().line;
    MNEME_ASSIGN_OR_RETURN(statement.text, ExpectName());
    MNEME_RETURN_IF_ERROR(Expect("("));
    while (!TakeOperator(")")) {
      if (!statement.parameters.empty()) MNEME_RETURN_IF_ERROR(Expect(","));
      MNEME_RETURN_IF_ERROR(ParseParameter(statement.parameters));
    }
    MNEME_RETURN_IF_ERROR(EndBlock());
    const size_t begin = next_;
    const int loops = std::exchange(loops_, 0);
    MNEME_ASSIGN_OR_RETURN(statement.body, ParseNested({"endmacro"}));
    loops_ = loops;
    // Variables that Jinja gives every macro beside its parameters.
    for (size_t i = begin; i < next_; ++i) {
      for (const absl::string_view name : {"varargs", "kwargs", "caller"}) {
        if (tokens_[i].kind == Token::kName && tokens_[i].text == name) {
          return absl::InvalidArgumentError(
              absl::StrCat("line ", tokens_[i].line, ": ", name, " in a macro is not supported"));
        }
      }
    }
    ++next_;
    MNEME_RETURN_IF_ERROR(EndBlock());
    return statement;
  }

  absl::Status ParseParameter(std::vector<std::pair<std::string, ExpressionPtr>>& parameters) {
    MNEME_ASSIGN_OR_RETURN(std::string name, ExpectName());
    for (const auto& [other, other_default] : parameters) {
      if (other == name) return Error(absl::StrCat("the parameter ", name, " occurs twice"));
    }
    ExpressionPtr value;
    if (TakeOperator("=")) {
      MNEME_ASSIGN_OR_RETURN(value, ParseExpression());
    } else if (!parameters.empty() && parameters.back().second != nullptr) {
      return Error(absl::StrCat("the parameter ", name, " needs a default, as the one before it"));
    }
    parameters.emplace_back(std::move(name), std::move(value));
    return absl::OkStatus();
  }

  // A scope with variables of its own.
  absl::StatusOr<Body> ParseNested(const std::vector<absl::string_view>& ends) {
    ++nested_;
    absl::StatusOr<Body> body = ParseBody(ends);
    --nested_;
    return body;
  }

  int loops_ = 0;
  int nested_ = 0;
};

}  // namespace

absl::StatusOr<Body> Parse(absl::string_view source) {
  MNEME_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace mneme::jinja
