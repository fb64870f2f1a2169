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
  return parsed->Render(variables, absl::FromUnixSeconds(1700000000));
}

TEST(TemplateTest, GivesWhatPythonGives) {
  std::ifstream file("tests/golden/chat_templates/golden.json");
  const nlohmann::ordered_json cases = nlohmann::ordered_json::parse(file);
  ASSERT_GT(cases.size(), 100);
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one["name"].get<std::string>(), " ", one["variables"].dump()));
    const absl::StatusOr<std::string> text =
        Render(one["template"].get<std::string>(), Value::FromJson(one["variables"]).map());
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
      {"a\n{% macro f() %}{% endmacro %}", "line 2: the block {% macro %}"},
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

TEST(TemplateTest, TellsTheTimeItIsGiven) {
  EXPECT_EQ(*Render("{{ strftime_now('%d %b %Y') }}"), "14 Nov 2023");
}

TEST(TemplateTest, EndsALoopThatTakesTooLong) {
  const std::string loop = "{% for i in range(100000) %}";
  const absl::StatusOr<std::string> text =
      Render(absl::StrCat(loop, loop, "{% endfor %}{% endfor %}"));
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace mneme::jinja
