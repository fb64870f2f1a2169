// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/jinja/value.h"

namespace mneme::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum Kind {
    kLiteral,      // value
    kName,         // text
    kList,         // operands
    kMap,          // operands: key, value, key, value, ...
    kAttribute,    // operands[0] . text
    kItem,         // operands[0] [ operands[1] ]
    kSlice,        // operands[0] [ [1] : [2] : [3] ], each of the last three may be null
    kCall,         // operands[0] ( operands[1...], named )
    kFilter,       // operands[0] | text ( operands[1...], named )
    kTest,         // operands[0] is text ( operands[1...] )
    kUnary,        // text: "not", "-", "+"
    kBinary,       // text: "and", "or", "==", "in", "not in", "+", "~", ...
    kConditional,  // operands[0] if operands[1] else operands[2], which may be null
  };
  Kind kind = kLiteral;
  int line = 1;
  int depth = 1;  // one more than its deepest operand: what is recursive about it goes no deeper
  Value value;
  std::string text;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum Kind {
    kText,   // text
    kPrint,  // expression
    kIf,     // branches: condition (null: else) and body
    kFor,    // names in expression [if condition]: body, else: other
    kSet,    // names[0] [. attribute] = expression, or the rendered body
    kMacro,  // text: its name; parameters, body
    kBreak,
    kContinue,
  };
  Kind kind = kText;
  int line = 1;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<std::string> names;
  std::string attribute;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // null: no default
  Body body;
  Body other;
};

}  // namespace mneme::jinja
