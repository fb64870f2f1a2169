// Chat templates of strangers: the input is a template, rendered over a fixed conversation;
// whatever it does ends in time, within 256 MiB of address space, in a text or in an error with a
// line.
#include <sys/resource.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"
#include "server/jinja/template.h"
#include "tests/fuzz/bounds.h"

namespace mneme {
namespace {

constexpr unsigned kSeconds = 60;
// Template::Render makes 64 MiB of texts and lists, and a little more for each of its variables.
constexpr size_t kMaxTextBytes = size_t{65} << 20;
constexpr rlim_t kMaxAddressSpace = rlim_t{256} << 20;

// Sanitizers reserve terabytes of address space, so there the resident memory is bounded instead.
#ifdef MNEME_SANITIZED
constexpr bool kBoundsAddressSpace = false;
#else
constexpr bool kBoundsAddressSpace = true;
#endif

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
    WorkMeter meter;
    for (const auto& [name, value] : json.items()) {
      made->Set(name, *jinja::Value::FromJson(value, meter));
    }
    return made;
  }();
  return *variables;
}

}  // namespace
}  // namespace mneme

// Memory that an input asks for in vain ends the program, too. The rest as in
// cmake/asan/default_options.cc.
extern "C" const char* __asan_default_options() {
  return "hard_rss_limit_mb=1024:allocator_may_return_null=0:max_allocation_size_mb=256:"
         "quarantine_size_mb=16:intercept_memmem=0";
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const rlimit limit{mneme::kMaxAddressSpace, mneme::kMaxAddressSpace};
  if (mneme::kBoundsAddressSpace) {
    mneme::Require(setrlimit(RLIMIT_AS, &limit) == 0, "the address space can be bounded");
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const mneme::TimeLimit limit(mneme::kSeconds);
  const absl::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = mneme::jinja::Template::Parse(source);
  if (!parsed.ok()) {
    mneme::Require(!parsed.status().message().empty(), "an error says something");
    return 0;
  }
  mneme::WorkMeter meter;
  const auto text = parsed->Render(mneme::Variables(), absl::FromUnixSeconds(1'000'000'000), meter);
  if (text.ok()) mneme::Require(text->size() <= mneme::kMaxTextBytes, "a bounded text");
  return 0;
}
