#include "engine/idempotency.h"

#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine/token_stream.h"

namespace mneme {
namespace {

int64_t EventBytes(const TokenEvent& event) {
  int64_t bytes = static_cast<int64_t>(sizeof(TokenEvent) + event.text.size() +
                                       event.token_ids.size() * sizeof(int32_t));
  if (event.usage.memory_use.has_value()) {
    bytes +=
        static_cast<int64_t>(event.usage.memory_use->sources.size() * sizeof(MemoryUse::Source));
  }
  for (const TokenLogprob& logprob : event.logprobs) {
    bytes += static_cast<int64_t>(sizeof(TokenLogprob) + logprob.text.size() +
                                  logprob.top.size() * sizeof(TopLogprob));
  }
  return bytes;
}

}  // namespace

KeyRecord* IdempotencyTable::Find(const std::string& owner, const std::string& key) {
  const auto it = records_.find(std::pair(owner, key));
  return it == records_.end() ? nullptr : &*it->second;
}

KeyRecord& IdempotencyTable::Insert(const std::string& owner, const std::string& key,
                                    uint64_t digest) {
  running_.push_back({.key = {owner, key}, .digest = digest});
  const auto it = std::prev(running_.end());
  CHECK(records_.emplace(it->key, it).second) << "idempotency key is known";
  while (size() > max_keys_ && !ended_.empty()) Forget(ended_.front());
  return *it;
}

void IdempotencyTable::Append(KeyRecord& record, const TokenEvent& event) {
  if (record.dropped_events) return;
  const int64_t before = record.bytes;
  TokenEvent copy = event;
  if (!record.events.empty() && MergeEvents(record.events.back(), copy)) {
    record.bytes += EventBytes(event) - static_cast<int64_t>(sizeof(TokenEvent));
  } else {
    record.bytes += EventBytes(event);
    record.events.push_back(std::move(copy));
  }
  bytes_ += record.bytes - before;
  if (record.bytes > kMaxRecordBytes) DropEvents(record);
  for (; bytes_ > max_bytes_ && oldest_kept_ != ended_.end(); ++oldest_kept_) {
    DropEvents(*oldest_kept_);
  }
  if (bytes_ > max_bytes_) DropEvents(record);
}

void IdempotencyTable::End(KeyRecord& record, KeyState state, int64_t position,
                           int64_t session_id) {
  record.state = state;
  record.position = position;
  record.session_id = session_id;
  if (state != KeyState::kFinished) DropEvents(record);
  const Records::iterator it = records_.at(record.key);
  ended_.splice(ended_.end(), running_, it);
  if (oldest_kept_ == ended_.end()) oldest_kept_ = it;
}

void IdempotencyTable::ForgetAnswers(int64_t session_id, int64_t position) {
  for (KeyRecord& record : ended_) {
    if (record.session_id != session_id || record.position <= position) continue;
    DropEvents(record);
    if (record.state == KeyState::kFinished) record.state = KeyState::kErased;
  }
}

void IdempotencyTable::Undo(int64_t session_id, int64_t position) {
  for (KeyRecord& record : ended_) {
    if (record.session_id != session_id || record.position <= position) continue;
    DropEvents(record);
    record.state = KeyState::kUndone;
  }
}

void IdempotencyTable::Forget(KeyRecord& record) {
  DropEvents(record);
  const auto it = records_.find(record.key);
  Records& list = record.state == KeyState::kRunning ? running_ : ended_;
  const Records::iterator position = it->second;
  records_.erase(it);
  if (oldest_kept_ == position) ++oldest_kept_;
  list.erase(position);
}

void IdempotencyTable::ForgetBeyond(int64_t session_id, int64_t position) {
  for (auto next = ended_.begin(); next != ended_.end();) {
    KeyRecord& record = *next++;
    if (record.session_id == session_id && record.position > position) Forget(record);
  }
}

void IdempotencyTable::DropEvents(KeyRecord& record) {
  bytes_ -= record.bytes;
  record.bytes = 0;
  record.events = {};
  record.dropped_events = true;
}

}  // namespace mneme
