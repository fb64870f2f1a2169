// Templates against what Python's jinja2 makes of them
// (tests/golden/chat_templates/make_golden.py).
#include "server/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace mneme::jinja {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source, const Map& variables = {}) {
  const absl::StatusOr<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  WorkMeter meter;
  return parsed->Render(variables, absl::FromUnixSeconds(1700000000), meter);
}

TEST(TemplateTest, GivesWhatPythonGives) {
  std::ifstream file("tests/golden/chat_templates/golden.json");
  const nlohmann::ordered_json cases = nlohmann::ordered_json::parse(file);
  ASSERT_GT(cases.size(), 100);
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one["name"].get<std::string>(), " ", one["variables"].dump()));
    WorkMeter meter;
    const absl::StatusOr<std::string> text =
        Render(one["template"].get<std::string>(), Value::FromJson(one["variables"], meter)->map());
    if (one.contains("error")) {
      EXPECT_FALSE(text.ok()) << *text << "\nexpected: " << one["error"];
    } else {
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, one["text"].get<std::string>());
    }
  }
}

TEST(TemplateTest, RefusesByNameWhatItDoesNotKnow) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{% call f() %}{% endcall %}", "line 2: the block {% call %}"},
      {"{% for x in y %}\n{% macro f() %}{% endmacro %}{% endfor %}",
       "line 2: a macro inside of a loop"},
      {"{% macro f() %}{% macro g() %}{% endmacro %}{% endmacro %}", "a macro inside of"},
      {"{% macro f() %}\n{{ caller() }}{% endmacro %}", "line 2: caller in a macro"},
      {"{% macro f() %}{{ kwargs }}{% endmacro %}", "kwargs in a macro"},
      {"{% macro f(a, a) %}{% endmacro %}", "the parameter a occurs twice"},
      {"{% macro f(a=1, b) %}{% endmacro %}", "the parameter b needs a default"},
      {"{% macro f %}{% endmacro %}", "expected"},
      {"{% macro f() %}", "{% endmacro %} is missing"},
      {"{% for x in y %}{% endfor %}{% macro f() %}{% break %}{% endmacro %}", "outside of a loop"},
      {"{% include 'x' %}", "include"},
      {"{{ x | wordcount }}", "the filter wordcount"},
      {"{{ x is prime }}", "the test prime"},
      {"{{ 2 ** 3 }}", "**"},
      {"{% for x in y recursive %}{% endfor %}", "recursive"},
      {"{% if x %}", "endif"},
      {"{{ x ", "}}"},
      {"{{ 'x }}", "quotation mark"},
      {"{% break %}", "outside of a loop"},
      {"{{ " + std::string(1000, '(') + " }}", "nested too deeply"},
  };
  for (const auto& [source, message] : cases) {
    const absl::StatusOr<std::string> text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(message)) << source;
  }
  EXPECT_THAT(std::string(Render("\n\n{{ lipsum(3) }}").status().message()),
              HasSubstr("line 3: there is no function lipsum"));
}

TEST(TemplateTest, TellsWhereRoundsOfOuterLoopsEnd) {
  const Template parsed =
      Template::Parse(
          "<{% set x %}{% for a in 'no' %}{{ a }}{% endfor %}{% endset %}"
          "{% for a in [1, 22] %}{{ a }}{% for b in 'xy' %}{{ b }}{% endfor %}|{% endfor %}>")
          .value();
  WorkMeter meter;
  std::vector<size_t> rounds;
  EXPECT_EQ(parsed.Render({}, absl::UnixEpoch(), meter, &rounds).value(), "<1xy|22xy|>");
  EXPECT_EQ(rounds, (std::vector<size_t>{5, 10}));
}

TEST(TemplateTest, TellsTheTimeItIsGiven) {
  EXPECT_EQ(*Render("{{ strftime_now('%d %b %Y') }}"), "14 Nov 2023");
}

TEST(TemplateTest, EndsALoopThatTakesTooLong) {
  const std::string loop = "{% for i in range(100000) %}";
  const absl::StatusOr<std::string> text =
      Render(absl::StrCat(loop, loop, "{% endfor %}{% endfor %}"));
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted);
}

// `count` times.
std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Sets `ns.v` to `first`, then `count` times to `next`, and goes on with `rest`.
std::string Grown(const std::string& first, const std::string& next, int count,
                  const std::string& rest = "") {
  return absl::StrCat("{% set ns = namespace(v=", first, ") %}{% for i in range(", count,
                      ") %}{% set ns.v = ", next, " %}{% endfor %}", rest);
}

TEST(TemplateTest, RefusesWhatWouldTakeTheStack) {
  const std::string self = "{% set ns = namespace() %}{% set ns.a = ns %}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {self + "{{ ns }}", "nested deeper than 100 levels"},
      {self + "{{ [ns] | string }}", "nested deeper than 100 levels"},
      {self + "{{ 'a' ~ ns }}", "nested deeper than 100 levels"},
      {self + "{{ ns | tojson }}", "a value of type namespace has no JSON"},
      {Grown("[]", "[ns.v]", 100000), "nested deeper than 100 levels"},
      {Grown("{}", "{'a': ns.v}", 100000), "nested deeper than 100 levels"},
      {Grown("{}", "dict(a=ns.v.get)", 100000), "nested deeper than 100 levels"},
      {"{{ 1" + Times(20000, " + 1") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ 1" + Times(20000, " ~ 1") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, " and x") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, " if x") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, ".a") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, "[0]") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, "()") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, "|trim") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ x" + Times(20000, " is defined") + " }}", "a chain or nest of more than 300 operations"},
      {"{{ " + Times(20000, "not ") + "x }}", "nested too deeply"},
      {"{{ " + Times(20000, "[") + " }}", "nested too deeply"},
      {Times(20000, "{% if x %}"), "nested too deeply"},
      {Times(2000000, " "), "bytes, expected at most"},
  };
  for (const auto& [source, message] : cases) {
    const absl::StatusOr<std::string> text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 80);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(message)) << source.substr(0, 80);
  }
  EXPECT_EQ(*Render("{{ 1" + Times(200, " + 1") + " }}"), "201");
}

TEST(TemplateTest, RefusesMacrosWithoutAnEnd) {
  for (const std::string& source : {
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% macro f(a=f()) %}{% endmacro %}{{ f() }}"),
           std::string("{% macro f() %}{{ g() }}{% endmacro %}"
                       "{% macro g() %}{% if true %}{{ f() ~ 'x' }}{% endif %}{% endmacro %}"
                       "{{ f() }}"),
           "{% macro f() %}{{ f()" + Times(250, " ~ 'x'") + " }}{% endmacro %}{{ f() }}",
       }) {
    const absl::StatusOr<std::string> text = Render(source);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 80);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("call each other too deeply"));
  }
  // Many at once are as many loops.
  const std::string doubling =
      "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
      "{% endmacro %}";
  EXPECT_EQ(*Render(doubling + "{{ f(5) }}"), "");
  EXPECT_EQ(Render(doubling + "{{ f(50) }}").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TemplateTest, RefusesWhatWouldTakeTheMemory) {
  const std::string big = Grown("'aaaaaaaa'", "ns.v ~ ns.v", 20);  // 8 MiB
  for (const std::string& source : {
           Grown("'a'", "ns.v ~ ns.v", 100),
           Grown("'a'", "ns.v + ns.v", 100),
           Grown("'a'", "ns.v.replace('a', 'aa')", 100),
           Grown("'a'", "[ns.v, ns.v] | join(ns.v)", 100),
           Grown("'\\na'", "ns.v ~ ns.v", 20, "{{ ns.v | indent(100) }}"),
           Grown("['a']", "ns.v + ns.v", 100),
           Grown("['a']", "(ns.v + ns.v) | map('string') | list", 100),
           Grown("{}", "{'a': ns.v, 'b': ns.v}", 90, "{{ ns.v }}"),
           Grown("[1]", "[ns.v, ns.v]", 90, "{{ ns.v | tojson }}"),
           Grown("[1]", "[ns.v, ns.v]", 90, "{{ ns.v | string | length }}"),
           Grown("0", "range(100000) | list", 1000),
           big + "{{ ns.v.replace('a', ns.v) }}",
           big + "{{ ns.v | list }}",
           big + "{{ ns.v.split('a') }}",
           big + "{% for c in ns.v %}{{ ns.v }}{% endfor %}",
       }) {
    EXPECT_EQ(Render(source).status().code(), absl::StatusCode::kResourceExhausted) << source;
  }
}

TEST(TemplateTest, RefusesWhatWouldTakeTheTime) {
  const std::string doubled = Grown("[1]", "[ns.v, ns.v]", 90, "{% set a = ns.v %}");
  for (const std::string& source : {
           doubled + Grown("[1]", "[ns.v, ns.v]", 90, "{{ ns.v == a }}"),
           doubled + Grown("[1]", "[ns.v, ns.v]", 90, "{{ ns.v in [a] }}"),
           doubled + Grown("[1]", "[ns.v, ns.v]", 90, "{{ [ns.v, a] | unique }}"),
           Grown("range(1000) | list", "ns.v | map('string') | list", 100000),
           std::string("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
                       "{% endfor %}"),
       }) {
    EXPECT_EQ(Render(source).status().code(), absl::StatusCode::kResourceExhausted) << source;
  }
}

// Nothing is left of them, says the leak sanitizer, and nothing is destroyed along their chain.
TEST(TemplateTest, NamespacesMayHoldEachOther) {
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns == ns }}{{ ns.a == ns }}"),
            "TrueTrue");
  EXPECT_EQ(*Render("{% set a = namespace() %}{% set b = namespace(x=a) %}{% set a.x = b %}"
                    "{{ a == b }}{{ a.x.x.x == b }}"),
            "FalseTrue");
  EXPECT_EQ(*Render(Grown("0", "namespace(next=ns.v)", 100000)), "");
  EXPECT_EQ(*Render(Grown("0", "[namespace(next=ns.v)]", 100000)), "");
  EXPECT_EQ(*Render("{% set ns = namespace(a=1, b='x') %}{{ ns }}"),
            "<Namespace {'a': 1, 'b': 'x'}>");
}

TEST(TemplateTest, NumbersThatDoNotFitDoNoHarm) {
  const std::string least = "{% set n = -9223372036854775807 - 1 %}";
  EXPECT_EQ(*Render(least + "{{ n is divisibleby(-1) }}{{ n // -1 }}{{ -n }}{{ n | abs }}"),
            "True-9223372036854775808-9223372036854775808-9223372036854775808");
  EXPECT_EQ(*Render(least + "{{ 'abc'[n:] }}{{ 'abc'[::n] }}{{ [1, 2][n] }}"), "abcc");
  EXPECT_EQ(*Render("{{ 1e300 | int }}{{ 'abc'[1::9223372036854775807] }}"), "0b");
  EXPECT_EQ(*Render("{{ range(0, 9223372036854775807, 9223372036854775806) | list }}"),
            "[0, 9223372036854775806]");
  EXPECT_EQ(*Render("{{ 4.9e-324 }}"), "5e-324");
}

TEST(TemplateTest, EndsOnceNobodyWaits) {
  int looks = 0;
  WorkMeter meter([&looks]() -> absl::Status {
    return ++looks < 3 ? absl::OkStatus() : absl::DeadlineExceededError("late");
  });
  const absl::StatusOr<Template> parsed =
      Template::Parse("{% for i in range(100000) %}{{ i }}{% endfor %}");
  EXPECT_EQ(parsed->Render({}, absl::UnixEpoch(), meter).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(meter.done(), 200'000);
}

}  // namespace
}  // namespace mneme::jinja
