#include "base/sha256.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

std::span<const std::byte> Bytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string Hex(const Sha256::Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}
std::string HexOf(absl::string_view text) {
  Sha256 sum;
  sum.Add(Bytes(text));
  return Hex(sum.Finish());
}

// NIST's examples.
TEST(Sha256Test, KnownTextsHaveTheirDigests) {
  EXPECT_EQ(HexOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HexOf(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// All lengths around the ends of blocks, cut at every place.
TEST(Sha256Test, HowBytesAreCutDoesNotMatter) {
  std::string text;
  for (int i = 0; i < 140; ++i) text.push_back(static_cast<char>(7 * i));
  for (size_t length : {1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 140}) {
    const absl::string_view whole = absl::string_view(text).substr(0, length);
    for (size_t cut = 0; cut <= length; ++cut) {
      Sha256 sum;
      sum.Add(Bytes(whole.substr(0, cut)));
      EXPECT_EQ(Hex(sum.Finish()), HexOf(whole.substr(0, cut)));
      sum.Add(Bytes(whole.substr(cut)));
      EXPECT_EQ(Hex(sum.Finish()), HexOf(whole)) << length << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace mneme
