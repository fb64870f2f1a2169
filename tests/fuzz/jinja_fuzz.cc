// Chat templates of strangers: the input is a template, rendered over a fixed conversation;
// whatever it does ends in time, in bounded memory, in a text or in an error with a line.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "server/jinja/template.h"
#include "tests/fuzz/bounds.h"

namespace mneme {
namespace {

constexpr unsigned kSeconds = 60;
// Template::Render promises some 64 MiB of text and as much for each value under way.
constexpr size_t kMaxTextBytes = size_t{192} << 20;

const jinja::Map& Variables() {
  static const jinja::Map* const variables = [] {
    const auto json = nlohmann::ordered_json::parse(R"({
      "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "tools": null,
      "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Where is the key?\n"},
        {"role": "assistant", "content": "", "number": -3.5, "list": [1, [2, 3], {"a": "b"}]},
        {"role": "user", "content": "\u00e4\u4e2d"}]})");
    auto* made = new jinja::Map();
    for (const auto& [name, value] : json.items()) {
      jinja::Assign(*made, name, jinja::Value::FromJson(value));
    }
    return made;
  }();
  return *variables;
}

}  // namespace
}  // namespace mneme

// Memory that an input asks for in vain ends the program, too.
extern "C" const char* __asan_default_options() {
  return "hard_rss_limit_mb=4096:allocator_may_return_null=0:max_allocation_size_mb=1024";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const mneme::TimeLimit limit(mneme::kSeconds);
  const absl::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = mneme::jinja::Template::Parse(source);
  if (!parsed.ok()) {
    mneme::Require(!parsed.status().message().empty(), "an error says something");
    return 0;
  }
  const auto text = parsed->Render(mneme::Variables(), absl::FromUnixSeconds(1'000'000'000));
  if (text.ok()) mneme::Require(text->size() <= mneme::kMaxTextBytes, "a bounded text");
  return 0;
}
