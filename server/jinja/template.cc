#include "server/jinja/template.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/builtins.h"
#include "server/jinja/parser.h"

namespace mneme::jinja {
namespace {

// What a rendering may cost: operations, and bytes of text.
constexpr int64_t kMaxSteps = 2'000'000;
constexpr size_t kMaxBytes = size_t{64} << 20;

using Result = absl::StatusOr<Value>;

class Interpreter {
 public:
  Interpreter(const Map& variables, absl::Time now) : now_(now) { scopes_.push_back(variables); }

  absl::StatusOr<std::string> Run(const Body& body) {
    MNEME_RETURN_IF_ERROR(Execute(body).status());
    return std::move(out_);
  }

 private:
  // How a body ended: at its end, or by a jump out of it.
  enum class Flow { kNext, kBreak, kContinue };

  absl::Status At(int line, const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
  }
  absl::Status CountStep() {
    if (++steps_ > kMaxSteps || out_.size() > kMaxBytes) {
      return absl::ResourceExhaustedError("the template takes too long");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> Execute(const Body& body) {
    for (const Statement& statement : body) {
      MNEME_RETURN_IF_ERROR(CountStep());
      Flow flow = Flow::kNext;
      switch (statement.kind) {
        case Statement::kText:
          out_ += statement.text;
          break;
        case Statement::kPrint: {
          MNEME_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
          out_ += value.ToText();
          break;
        }
        case Statement::kIf: {
          MNEME_ASSIGN_OR_RETURN(flow, ExecuteIf(statement));
          break;
        }
        case Statement::kFor: {
          MNEME_ASSIGN_OR_RETURN(flow, ExecuteFor(statement));
          break;
        }
        case Statement::kSet:
          MNEME_RETURN_IF_ERROR(ExecuteSet(statement));
          break;
        case Statement::kBreak:
          return Flow::kBreak;
        case Statement::kContinue:
          return Flow::kContinue;
      }
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  absl::StatusOr<Flow> ExecuteIf(const Statement& statement) {
    for (const auto& [condition, body] : statement.branches) {
      if (condition != nullptr) {
        MNEME_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
        if (!value.Truthy()) continue;
      }
      return Execute(body);
    }
    return Flow::kNext;
  }

  absl::Status Unpack(const Statement& statement, const Value& value, Map& scope) const {
    if (statement.names.size() == 1) {
      Assign(scope, statement.names[0], value);
      return absl::OkStatus();
    }
    const absl::StatusOr<List> parts = Elements(value);
    if (!parts.ok() || parts->size() != statement.names.size()) {
      return At(statement.line, absl::InvalidArgumentError(
                                    absl::StrCat("expected a list of ", statement.names.size())));
    }
    for (size_t i = 0; i < parts->size(); ++i) Assign(scope, statement.names[i], (*parts)[i]);
    return absl::OkStatus();
  }

  // The elements that the loop's condition lets pass.
  absl::StatusOr<List> LoopElements(const Statement& statement) {
    MNEME_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
    absl::StatusOr<List> all = Elements(value);
    if (!all.ok()) return At(statement.line, all.status());
    if (statement.condition == nullptr) return all;
    List kept;
    for (Value& element : *all) {
      scopes_.emplace_back();
      const absl::Status unpacked = Unpack(statement, element, scopes_.back());
      Result passes = unpacked.ok() ? Evaluate(*statement.condition) : Result(unpacked);
      scopes_.pop_back();
      if (!passes.ok()) return passes.status();
      if (passes->Truthy()) kept.push_back(std::move(element));
    }
    return kept;
  }

  static Value LoopFacts(const List& list, size_t i) {
    const auto index = static_cast<int64_t>(i);
    const auto size = static_cast<int64_t>(list.size());
    Map loop = {{"index", index + 1},           {"index0", index}, {"first", i == 0},
                {"last", index + 1 == size},    {"length", size},  {"revindex", size - index},
                {"revindex0", size - index - 1}};
    if (i > 0) loop.emplace_back("previtem", list[i - 1]);
    if (i + 1 < list.size()) loop.emplace_back("nextitem", list[i + 1]);
    return loop;
  }

  absl::StatusOr<Flow> ExecuteFor(const Statement& statement) {
    MNEME_ASSIGN_OR_RETURN(const List list, LoopElements(statement));
    if (list.empty()) return Execute(statement.other);
    for (size_t i = 0; i < list.size(); ++i) {
      MNEME_RETURN_IF_ERROR(CountStep());
      scopes_.emplace_back();
      MNEME_RETURN_IF_ERROR(Unpack(statement, list[i], scopes_.back()));
      Assign(scopes_.back(), "loop", LoopFacts(list, i));
      absl::StatusOr<Flow> flow = Execute(statement.body);
      scopes_.pop_back();
      if (!flow.ok()) return flow;
      if (*flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  absl::Status ExecuteSet(const Statement& statement) {
    Value value;
    if (statement.expression != nullptr) {
      MNEME_ASSIGN_OR_RETURN(value, Evaluate(*statement.expression));
    } else {
      std::string outer = std::exchange(out_, {});
      const absl::Status status = Execute(statement.body).status();
      value = std::exchange(out_, std::move(outer));
      MNEME_RETURN_IF_ERROR(status);
    }
    if (statement.attribute.empty()) return Unpack(statement, value, scopes_.back());
    const Value target = Find(statement.names[0]);
    if (!target.is_namespace()) {
      return At(statement.line, absl::InvalidArgumentError(
                                    absl::StrCat(statement.names[0], " is no namespace, so ",
                                                 statement.attribute, " of it cannot be set")));
    }
    Assign(target.mutable_map(), statement.attribute, std::move(value));
    return absl::OkStatus();
  }

  Value Find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      for (const auto& [key, value] : *scope) {
        if (key == name) return value;
      }
    }
    if (IsFunction(name)) return Builtin{name, nullptr};
    return Undefined{name};
  }

  Result Evaluate(const Expression& e) {
    MNEME_RETURN_IF_ERROR(CountStep());
    switch (e.kind) {
      case Expression::kLiteral:
        return e.value;
      case Expression::kName:
        return Find(e.text);
      case Expression::kBinary:
        if (e.text == "and" || e.text == "or") return EvaluateLogic(e);
        break;
      case Expression::kConditional: {
        MNEME_ASSIGN_OR_RETURN(const Value condition, Evaluate(*e.operands[1]));
        if (condition.Truthy()) return Evaluate(*e.operands[0]);
        if (e.operands[2] == nullptr) return Value(Undefined{"the other value"});
        return Evaluate(*e.operands[2]);
      }
      default:
        break;
    }
    std::vector<Value> operands;
    for (const ExpressionPtr& operand : e.operands) {
      operands.emplace_back();
      if (operand == nullptr) continue;
      MNEME_ASSIGN_OR_RETURN(operands.back(), Evaluate(*operand));
    }
    Result result = Apply(e, operands);
    // Of nested expressions the innermost one's line says most.
    if (!result.ok() && result.status().message().substr(0, 5) != "line ") {
      return At(e.line, result.status());
    }
    return result;
  }

  Result EvaluateLogic(const Expression& e) {
    MNEME_ASSIGN_OR_RETURN(Value left, Evaluate(*e.operands[0]));
    if (left.Truthy() == (e.text == "or")) return left;
    return Evaluate(*e.operands[1]);
  }

  Result Apply(const Expression& e, std::vector<Value>& operands) {
    switch (e.kind) {
      case Expression::kList:
        return Value(List(std::move(operands)));
      case Expression::kMap: {
        Map map;
        for (size_t i = 0; i < operands.size(); i += 2) {
          Assign(map, operands[i].ToText(), operands[i + 1]);
        }
        return Value(std::move(map));
      }
      case Expression::kAttribute:
        return Attribute(operands[0], e.text);
      case Expression::kItem:
        return Item(operands[0], operands[1]);
      case Expression::kSlice:
        return Slice(operands[0], operands[1], operands[2], operands[3]);
      case Expression::kUnary:
        return Unary(e.text, operands[0]);
      case Expression::kBinary:
        return Binary(e.text, operands[0], operands[1]);
      default:
        break;
    }
    Arguments arguments;
    arguments.values.assign(std::make_move_iterator(operands.begin() + 1),
                            std::make_move_iterator(operands.end()));
    for (const auto& [name, expression] : e.named) {
      MNEME_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
      arguments.named.emplace_back(name, std::move(value));
    }
    if (e.kind == Expression::kFilter) return ApplyFilter(e.text, operands[0], arguments);
    if (e.kind == Expression::kTest) {
      MNEME_ASSIGN_OR_RETURN(const bool passes, ApplyTest(e.text, operands[0], arguments));
      return Value(passes);
    }
    if (!operands[0].Is<Builtin>()) {
      const Expression& called = *e.operands[0];
      return absl::InvalidArgumentError(
          absl::StrCat("there is no function ", called.text.empty() ? "here" : called.text));
    }
    return Call(operands[0].Get<Builtin>(), arguments, now_);
  }

  static Result Unary(const std::string& op, const Value& value) {
    if (op == "not") return Value(!value.Truthy());
    if (!value.is_number()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot negate ", value.TypeName()));
    }
    if (op == "+") return value;
    return value.is_int() ? Value(-value.integer()) : Value(-value.number());
  }

  static Result Binary(const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return Value(a == b);
    if (op == "!=") return Value(!(a == b));
    if (op == "~") return Value(absl::StrCat(a.ToText(), b.ToText()));
    if (op == "in" || op == "not in") {
      MNEME_ASSIGN_OR_RETURN(const bool contains, Contains(b, a));
      return Value(contains == (op == "in"));
    }
    if (op[0] == '<' || op[0] == '>') {
      MNEME_ASSIGN_OR_RETURN(const int order, Compare(a, b));
      return Value(op == "<"    ? order < 0
                   : op == ">"  ? order > 0
                   : op == "<=" ? order <= 0
                                : order >= 0);
    }
    if (op == "+" && a.is_text() && b.is_text()) return Value(absl::StrCat(a.text(), b.text()));
    if (op == "+" && a.is_list() && b.is_list()) {
      List list = a.list();
      list.insert(list.end(), b.list().begin(), b.list().end());
      return Value(std::move(list));
    }
    return Arithmetic(op, a, b);
  }

  static Result Arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (!a.is_number() || !b.is_number()) {
      const auto shown = [](const Value& value) {
        return value.is_undefined() ? absl::StrCat(value.Get<Undefined>().name, " (undefined)")
                                    : value.TypeName();
      };
      return absl::InvalidArgumentError(
          absl::StrCat("cannot compute ", shown(a), " ", op, " ", shown(b)));
    }
    if ((op[0] == '/' || op == "%") && b.number() == 0) {
      return absl::InvalidArgumentError("division by zero");
    }
    if (op == "/") return Value(a.number() / b.number());
    if (a.is_int() && b.is_int()) {
      // Unsigned, because an overflow of theirs is defined.
      const auto x = static_cast<uint64_t>(a.integer());
      const auto y = static_cast<uint64_t>(b.integer());
      if (op == "+") return Value(static_cast<int64_t>(x + y));
      if (op == "-") return Value(static_cast<int64_t>(x - y));
      if (op == "*") return Value(static_cast<int64_t>(x * y));
      if (b.integer() == -1) return Value(op == "%" ? int64_t{0} : static_cast<int64_t>(0 - x));
      int64_t quotient = a.integer() / b.integer();
      int64_t rest = a.integer() % b.integer();
      if (rest != 0 && (rest < 0) != (b.integer() < 0)) {  // Python rounds down
        --quotient;
        rest += b.integer();
      }
      return Value(op == "%" ? rest : quotient);
    }
    const double quotient = std::floor(a.number() / b.number());
    if (op == "+") return Value(a.number() + b.number());
    if (op == "-") return Value(a.number() - b.number());
    if (op == "*") return Value(a.number() * b.number());
    return Value(op == "%" ? a.number() - quotient * b.number() : quotient);
  }

  const absl::Time now_;
  std::vector<Map> scopes_;
  std::string out_;
  int64_t steps_ = 0;
};

}  // namespace

absl::StatusOr<Template> Template::Parse(absl::string_view source) {
  MNEME_ASSIGN_OR_RETURN(Body body, jinja::Parse(source));
  return Template(std::move(body));
}

absl::StatusOr<std::string> Template::Render(const Map& variables, absl::Time now) const {
  return Interpreter(variables, now).Run(body_);
}

}  // namespace mneme::jinja
