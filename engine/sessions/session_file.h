// A session as a file, to be kept or to go on elsewhere: on another machine, another device, with
// another state dtype. This header and session_file.cc alone know its bytes.
//
//   file     := length:fixed64 header tensor*    a safetensors file (models/safetensors.h), which
//                                                libraries of that format read
//   header   := JSON: "__metadata__", then the tensors in the order in which they lie
//   tensor*  := "mneme.history" field* "mneme.sha256"
//
//   mneme.history   I32 [n]: the last tokens of the conversation, which penalties look back on,
//                   oldest first, the pending one included; ~token where it was generated
//   field           a tensor of the canonical state under its own name, "layers.3.memory", in the
//                   model's order (models/state_codec.h); numbers are f32 (or f64), and finite.
//                   "engrams.seed" only where the session brought one (SessionInfo::memory_seed):
//                   readers of before there were any refuse it by name
//   mneme.sha256    U8 [32]: SHA-256 of all bytes of the file in front of it. It is last.
//
// Metadata of version 1. All values are texts; numbers are decimal, hashes 16 hexadecimal digits.
//
//   format              "mneme-session"
//   format_version      "1"
//   model_type model    as config.json has it; the name of the model's folder, for people
//   fingerprint         of configuration and weights (ModelInfo::fingerprint)
//   vocabulary          of what token ids stand for (VocabularyHash)
//   state_dtype         of matrix memories where the session was: "f32", "f16", "int8", "f64"
//   position            tokens of the conversation: fed_tokens, and the pending one
//   fed_tokens
//   pending_token       sampled and not yet fed; absent where there is none
//   conversation_bytes  conversation_hash   ConversationDigest of the tokens fed
//   opening_bytes opening_hash    Session::opening; absent where that is not known
//   has_text            "true" or "false" (Session::has_text)
//   evictions           of engrams, so far (Session::evictions)
//   created_at exported_at                  RFC 3339, for people
//
// Neither the session's name nor its owner is in it, nor keys of requests. Nor is a seed of draws
// of tokens: these follow from a request's own.
//
// Versions. A reader refuses a version above its own, and reads all below: what version 1 says of a
// key or a tensor holds as long as there are files of version 1. Keys of the metadata that a reader
// does not know are disregarded, so one may be added for people; whatever changes what a reader
// must know is a new version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/sha256.h"
#include "engine/sessions/conversation_digest.h"
#include "kernels/tensor_view.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "models/safetensors_writer.h"
#include "models/state_codec.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// What tells whether token ids mean the same: over the kind and text of each. 0: no tokenizer.
uint64_t VocabularyHash(const Tokenizer* tokenizer);

// Which model a session's state is of.
struct SessionModel {
  std::string model_type;
  std::string name;
  uint64_t fingerprint = 0;
  uint64_t vocabulary = 0;
  std::string state_dtype;

  static SessionModel Of(const ModelInfo& info, DType state_dtype, const Tokenizer* tokenizer);
};

// All that a file holds but for the state's tensors.
struct SessionFacts {
  SessionModel model;
  int64_t fed_tokens = 0;
  std::optional<int32_t> pending_token;
  ConversationDigest fed;
  ConversationDigest opening;
  bool has_text = false;
  int32_t evictions = 0;
  std::vector<int32_t> history;  // as mneme.history
  absl::Time created = absl::UnixEpoch();
  absl::Time exported = absl::UnixEpoch();

  int64_t position() const { return fed_tokens + (pending_token.has_value() ? 1 : 0); }
};

// The bytes of a file, piece by piece: tensors come into being one at a time. Used by one thread at
// a time.
class SessionFileSource {
 public:
  SessionFileSource(SessionFacts facts, std::unique_ptr<const StateCopy> state);

  const SessionFacts& facts() const { return facts_; }
  // The bytes of the whole file.
  int64_t bytes() const { return bytes_; }
  // The next piece, at most kPieceBytes; empty: the file is complete.
  std::string Next();

  static constexpr size_t kPieceBytes = size_t{1} << 20;

 private:
  // What is behind the tensors that were taken.
  void Refill();

  const SessionFacts facts_;
  const std::unique_ptr<const StateCopy> state_;
  const std::vector<StateTensorSpec> tensors_;
  int64_t bytes_ = 0;
  Sha256 sum_;
  std::string ready_;  // from `taken_` on
  size_t taken_ = 0;
  size_t next_tensor_ = 0;
  bool complete_ = false;
};

// A file whose format was checked. The bytes must outlive it.
class SessionFile {
 public:
  // `path` is for messages. INVALID_ARGUMENT: no such file, cut off, or something in it that cannot
  // be; the message names it. FAILED_PRECONDITION: of a newer version.
  static absl::StatusOr<SessionFile> Parse(std::span<const std::byte> bytes,
                                           absl::string_view path);

  int version() const { return version_; }
  const SessionFacts& facts() const { return facts_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Tensors of the state, in the order in which they lie.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  // The checksum that stands in the file, hexadecimal.
  std::string Sha256Text() const;

  // DATA_LOSS unless it is that of the bytes.
  absl::Status CheckSum() const;
  // FAILED_PRECONDITION, reason MODEL_MISMATCH, unless the state is one of this model's: says what
  // differs.
  absl::Status CheckModel(const SessionModel& model) const;
  // A copy of the tensors. INVALID_ARGUMENT names one with a number that is not finite.
  absl::StatusOr<CanonicalState> State() const;

 private:
  absl::Status ReadTensors();
  absl::Status ReadFacts();
  absl::Status ReadHistory(const SafetensorsTensor& tensor);
  absl::Status Wrong(absl::string_view what) const;
  std::span<const std::byte> BytesOf(const SafetensorsTensor& tensor) const;

  std::span<const std::byte> bytes_;
  std::string path_;
  SafetensorsHeader header_;
  SafetensorsTensor sum_;
  std::vector<SafetensorsTensor> tensors_;
  SessionFacts facts_;
  int version_ = 0;
};

// More than any file has of a session of this model that was fed at most `max_tokens` tokens,
// however many engrams it has room for.
int64_t LargestSessionFile(const StateLayout& layout, int64_t max_tokens);

}  // namespace mneme
