// Where in a session's text a piece of it lies.
#pragma once

namespace mneme {

// A text is cut at added tokens into sections; sections are normalised, and then cut into pieces.
struct SectionContext {
  // The section begins where the text does: no added token before it. Once a piece was cut off in
  // front, the rest is not at the start any more.
  bool at_text_start = true;
  // The text goes on where tokens of the session ended, and this is its first section: what a
  // normalizer or pre-tokenizer would put in front of a text ("▁", a space) is not put there.
  bool continuation = false;
};

}  // namespace mneme
