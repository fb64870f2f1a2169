#include "engine/model_identity.h"

#include <string>
#include <utility>
#include <vector>

#include "models/weight_scan.h"

namespace mneme {

uint64_t ModelIdentity(const Model& model, const Tokenizer* tokenizer) {
  const uint64_t fingerprint = model.info().fingerprint;
  return tokenizer == nullptr ? fingerprint : CombineHashes(fingerprint, tokenizer->digest());
}

uint64_t FirstModelIdentity(const Model& model, const Tokenizer* tokenizer) {
  uint64_t identity = model.info().fingerprint;
  if (tokenizer == nullptr) return identity;
  for (int32_t token = 0; token < tokenizer->vocab_size(); ++token) {
    const TokenEntry& entry = tokenizer->entry(token);
    identity = CombineHashes(identity, HashText(entry.piece));
    identity = CombineHashes(identity, static_cast<uint64_t>(entry.kind));
  }
  return identity;
}

absl::Status TakeOverFirstIdentity(SessionStore& store, const Model& model,
                                   const Tokenizer* tokenizer) {
  const uint64_t before = FirstModelIdentity(model, tokenizer);
  const uint64_t now = ModelIdentity(model, tokenizer);
  if (before == now || !store.HasSessionsOf(before)) return absl::OkStatus();
  std::vector<Change> changes = {TakeOverModel{before, now}};
  const std::string name = store.NameOfModel(before);
  if (!name.empty()) changes.push_back(NameModel{now, name});
  return store.Apply(std::move(changes));
}

}  // namespace mneme
