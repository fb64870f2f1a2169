#include "server/jinja/template.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/jinja/builtins.h"
#include "server/jinja/operators.h"
#include "server/jinja/parser.h"
#include "server/jinja/render_budget.h"
#include "server/jinja/text_methods.h"

namespace mneme::jinja {
namespace {

// The limits of every rendering, and what each value and each byte of its variables adds to them.
constexpr int64_t kSteps = 2'000'000;
constexpr int64_t kStepsPerValue = 200;
constexpr int64_t kMemoryBytes = int64_t{64} << 20;
constexpr int64_t kMemoryPerValue = 512;
constexpr int64_t kMemoryPerByte = 32;
// The most blocks and expressions, macros' included, that may wait for others inside of them: the
// stack has to hold them. The parser bounds their number in one macro; this also bounds those of
// macros that call macros.
constexpr int kMaxDepth = 600;
// The longest template. Those of checkpoints have thousands of bytes.
constexpr size_t kMaxSourceBytes = size_t{1} << 20;

using Result = absl::StatusOr<Value>;

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError("there is not enough memory for the template");
}

// Adds what `value` costs to what may be spent.
void Allow(const Value& value, RenderLimits& limits) {
  limits.steps += kStepsPerValue;
  limits.memory_bytes += kMemoryPerValue;
  if (value.is_text()) {
    limits.memory_bytes += kMemoryPerByte * static_cast<int64_t>(value.text().size());
    limits.steps += static_cast<int64_t>(value.text().size());
  } else if (value.is_list()) {
    for (const Value& element : value.list()) Allow(element, limits);
  } else if (value.is_map()) {
    for (const auto& [key, element] : value.map()) Allow(element, limits);
  }
}

RenderLimits LimitsFor(const Map& variables) {
  RenderLimits limits{.steps = kSteps, .memory_bytes = kMemoryBytes};
  for (const auto& [name, value] : variables) Allow(value, limits);
  return limits;
}

// Recursion is as deep as blocks and expressions are, which the parser bounds, and as macros call
// each other, for which Descend does.
class Interpreter {
 public:
  Interpreter(const Map& variables, absl::Time now, WorkMeter& meter, std::vector<size_t>* rounds)
      : variables_(variables),
        now_(now),
        budget_(LimitsFor(variables), meter),
        out_(budget_),
        rounds_(rounds) {
    scopes_.emplace_back();
  }

  absl::StatusOr<std::string> Run(const Body& body) {
    MNEME_RETURN_IF_ERROR(Execute(body).status());
    return out_.TakeText();
  }

 private:
  // How a body ended: at its end, or by a jump out of it.
  enum class Flow { kNext, kBreak, kContinue };

  absl::Status At(int line, const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
  }

  // Counts a level for as long as it lives.
  struct Level {
    explicit Level(int& depth) : depth(++depth) {}
    ~Level() { --depth; }
    int& depth;
  };
  absl::Status CheckDepth() const {
    if (depth_ <= kMaxDepth) return absl::OkStatus();
    return absl::InvalidArgumentError("macros call each other too deeply");
  }

  absl::StatusOr<Flow> Execute(const Body& body) {
    const Level level(depth_);
    MNEME_RETURN_IF_ERROR(CheckDepth());
    for (const Statement& statement : body) {
      MNEME_RETURN_IF_ERROR(budget_.Step());
      Flow flow = Flow::kNext;
      switch (statement.kind) {
        case Statement::kText:
          MNEME_RETURN_IF_ERROR(out_.Append(statement.text));
          break;
        case Statement::kPrint: {
          MNEME_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
          MNEME_RETURN_IF_ERROR(Print(value, statement.line));
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
        case Statement::kMacro:
          scopes_.back().Set(statement.text,
                             *Value::OfFunction({.name = statement.text, .macro = &statement}));
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

  absl::Status Print(const Value& value, int line) {
    const absl::Status status = out_.AppendValue(value);
    return status.ok() ? status : At(line, status);
  }

  absl::Status Unpack(const Statement& statement, const Value& value, Map& scope) {
    if (statement.names.size() == 1) {
      scope.Set(statement.names[0], value);
      return absl::OkStatus();
    }
    const Result parts = Elements(value, budget_);
    if (!parts.ok() || parts->list().size() != statement.names.size()) {
      return At(statement.line, absl::InvalidArgumentError(
                                    absl::StrCat("expected a list of ", statement.names.size())));
    }
    for (size_t i = 0; i < statement.names.size(); ++i) {
      scope.Set(statement.names[i], parts->list()[i]);
    }
    return absl::OkStatus();
  }

  // The elements that the loop's condition lets pass, as a list.
  Result LoopElements(const Statement& statement) {
    MNEME_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
    Result all = Elements(value, budget_);
    if (!all.ok()) return At(statement.line, all.status());
    if (statement.condition == nullptr) return all;
    ListBuilder kept(budget_);
    for (const Value& element : all->list()) {
      scopes_.emplace_back();
      const absl::Status unpacked = Unpack(statement, element, scopes_.back());
      Result passes = unpacked.ok() ? Evaluate(*statement.condition) : Result(unpacked);
      scopes_.pop_back();
      if (!passes.ok()) return passes.status();
      if (passes->Truthy()) MNEME_RETURN_IF_ERROR(kept.Add(element));
    }
    return kept.Finish();
  }

  absl::StatusOr<Flow> ExecuteFor(const Statement& statement) {
    const auto loop = std::make_shared<Loop>();
    MNEME_ASSIGN_OR_RETURN(loop->list, LoopElements(statement));
    const List& list = loop->list.list();
    if (list.empty()) return Execute(statement.other);
    MNEME_RETURN_IF_ERROR(budget_.TakeMemory(sizeof(Loop)));
    const Result facts = Value::OfLoop(loop);
    if (!facts.ok()) return At(statement.line, facts.status());
    for (size_t i = 0; i < list.size(); ++i) {
      MNEME_RETURN_IF_ERROR(budget_.Step());
      loop->index = i;
      scopes_.emplace_back();
      MNEME_RETURN_IF_ERROR(Unpack(statement, list[i], scopes_.back()));
      scopes_.back().Set("loop", *facts);
      ++loops_;
      absl::StatusOr<Flow> flow = Execute(statement.body);
      --loops_;
      scopes_.pop_back();
      if (!flow.ok()) return flow;
      if (rounds_ != nullptr && loops_ == 0 && captures_ == 0) rounds_->push_back(out_.size());
      if (*flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  absl::Status ExecuteSet(const Statement& statement) {
    Value value;
    if (statement.expression != nullptr) {
      MNEME_ASSIGN_OR_RETURN(value, Evaluate(*statement.expression));
    } else {
      MNEME_ASSIGN_OR_RETURN(value, Captured(statement.body));
    }
    if (statement.attribute.empty()) return Unpack(statement, value, scopes_.back());
    const Value target = Find(statement.names[0]);
    if (!target.is_namespace()) {
      return At(statement.line, absl::InvalidArgumentError(
                                    absl::StrCat(statement.names[0], " is no namespace, so ",
                                                 statement.attribute, " of it cannot be set")));
    }
    MNEME_RETURN_IF_ERROR(budget_.TakeMemory(statement.attribute.size() + 2 * sizeof(Value)));
    target.name_space().attributes.Set(statement.attribute, std::move(value));
    return absl::OkStatus();
  }

  // The text that `body` prints.
  Result Captured(const Body& body) {
    TextBuilder outer = std::exchange(out_, TextBuilder(budget_));
    ++captures_;
    const absl::Status status = Execute(body).status();
    --captures_;
    Value text = std::exchange(out_, std::move(outer)).Finish();
    if (!status.ok()) return status;
    return text;
  }

  // A macro sees what is set outside of all loops, and its parameters; not its caller's variables.
  Result CallMacro(const Statement& macro, Arguments arguments) {
    std::vector<Map> callers(std::make_move_iterator(scopes_.begin() + 1),
                             std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.emplace_back();
    const absl::Status bound = Bind(macro, std::move(arguments));
    Result text = bound.ok() ? Captured(macro.body) : Result(bound);
    scopes_.resize(1);
    scopes_.insert(scopes_.end(), std::make_move_iterator(callers.begin()),
                   std::make_move_iterator(callers.end()));
    return text;
  }

  // A default may name the parameters before it.
  absl::Status Bind(const Statement& macro, Arguments arguments) {
    const auto& parameters = macro.parameters;
    if (arguments.values.size() > parameters.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the macro ", macro.text, " takes at most ",
                                                     parameters.size(), " arguments, found ",
                                                     arguments.values.size()));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = parameters[i].first;
      const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& each) { return each.first == name; });
      Value value = Undefined(name);
      if (i < arguments.values.size()) {
        value = arguments.values[i];
      } else if (named != arguments.named.end()) {
        value = named->second;
        arguments.named.erase(named);
      } else if (parameters[i].second != nullptr) {
        MNEME_ASSIGN_OR_RETURN(value, Evaluate(*parameters[i].second));
      }
      scopes_.back().Set(name, std::move(value));
    }
    if (arguments.named.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the macro ", macro.text, " takes no argument ",
                                                   arguments.named[0].first, " here"));
  }

  Value Find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const Value* value = scope->Find(name); value != nullptr) return *value;
    }
    if (const Value* value = variables_.Find(name); value != nullptr) return *value;
    if (IsFunction(name)) return *Value::OfFunction({.name = name});
    return Undefined(name);
  }

  Result Evaluate(const Expression& e) {
    const Level level(depth_);
    MNEME_RETURN_IF_ERROR(CheckDepth());
    MNEME_RETURN_IF_ERROR(budget_.Step());
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
        if (e.operands[2] == nullptr) return Value(Undefined("the other value"));
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
    // The line of the innermost of nested expressions says most.
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
        return budget_.NewList(std::move(operands));
      case Expression::kMap: {
        Map map;
        for (size_t i = 0; i < operands.size(); i += 2) {
          MNEME_ASSIGN_OR_RETURN(const Value key, AsText(operands[i], budget_));
          map.Set(key.text(), operands[i + 1]);
        }
        return budget_.NewMap(std::move(map));
      }
      case Expression::kAttribute:
        return Attribute(operands[0], e.text, budget_);
      case Expression::kItem:
        return Item(operands[0], operands[1], budget_);
      case Expression::kSlice:
        return Slice(operands[0], operands[1], operands[2], operands[3], budget_);
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
    if (e.kind == Expression::kFilter) return ApplyFilter(e.text, operands[0], arguments, budget_);
    if (e.kind == Expression::kTest) {
      MNEME_ASSIGN_OR_RETURN(const bool passes, ApplyTest(e.text, operands[0], arguments, budget_));
      return Value(passes);
    }
    if (!operands[0].is_function()) {
      const Expression& called = *e.operands[0];
      return absl::InvalidArgumentError(
          absl::StrCat("there is no function ", called.text.empty() ? "here" : called.text));
    }
    const Function& function = operands[0].function();
    if (function.macro != nullptr) return CallMacro(*function.macro, std::move(arguments));
    return Call(function, arguments, now_, budget_);
  }

  static Result Unary(const std::string& op, const Value& value) {
    if (op == "not") return Value(!value.Truthy());
    if (!value.is_number()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot negate ", value.TypeName()));
    }
    if (op == "+") return value;
    // Unsigned, because an overflow of theirs is defined.
    if (value.is_int())
      return Value(static_cast<int64_t>(0 - static_cast<uint64_t>(value.integer())));
    return Value(-value.number());
  }

  Result Binary(const std::string& op, const Value& a, const Value& b) {
    if (op == "==" || op == "!=") {
      MNEME_ASSIGN_OR_RETURN(const bool equal, Equal(a, b, budget_));
      return Value(equal == (op == "=="));
    }
    if (op == "~") return Concatenation(a, b);
    if (op == "in" || op == "not in") {
      MNEME_ASSIGN_OR_RETURN(const bool contains, Contains(b, a, budget_));
      return Value(contains == (op == "in"));
    }
    if (op[0] == '<' || op[0] == '>') {
      MNEME_ASSIGN_OR_RETURN(const int order, Compare(a, b, budget_));
      return Value(op == "<"    ? order < 0
                   : op == ">"  ? order > 0
                   : op == "<=" ? order <= 0
                                : order >= 0);
    }
    if (op == "+" && a.is_text() && b.is_text()) return Concatenation(a, b);
    if (op == "+" && a.is_list() && b.is_list()) {
      ListBuilder list(budget_);
      for (const Value* part : {&a, &b}) {
        for (const Value& element : part->list()) MNEME_RETURN_IF_ERROR(list.Add(element));
      }
      return list.Finish();
    }
    return Arithmetic(op, a, b);
  }

  Result Concatenation(const Value& a, const Value& b) {
    TextBuilder text(budget_);
    MNEME_RETURN_IF_ERROR(text.AppendValue(a));
    MNEME_RETURN_IF_ERROR(text.AppendValue(b));
    return text.Finish();
  }

  static Result Arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (!a.is_number() || !b.is_number()) {
      const auto shown = [](const Value& value) {
        return value.is_undefined() ? absl::StrCat(value.missing(), " (undefined)")
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

  const Map& variables_;
  const absl::Time now_;
  RenderBudget budget_;  // ends after all values
  std::vector<Map> scopes_;
  TextBuilder out_;
  int depth_ = 0;
  std::vector<size_t>* const rounds_;
  int loops_ = 0;     // around what is executed
  int captures_ = 0;  // the same: `out_` is not what is rendered in the end
};

}  // namespace

absl::StatusOr<Template> Template::Parse(absl::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the template has ", source.size(),
                                                   " bytes, expected at most ", kMaxSourceBytes));
  }
  try {
    MNEME_ASSIGN_OR_RETURN(Body body, jinja::Parse(source));
    return Template(std::move(body));
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

absl::StatusOr<std::string> Template::Render(const Map& variables, absl::Time now, WorkMeter& meter,
                                             std::vector<size_t>* rounds) const {
  // Where a process may have little memory, it ends before a budget does.
  try {
    return Interpreter(variables, now, meter, rounds).Run(body_);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace mneme::jinja
