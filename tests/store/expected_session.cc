#include "tests/store/expected_session.h"

#include <cstddef>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "store/slab_file.h"

namespace mneme {
namespace {

std::string DescribeTurn(const Turn& turn) {
  std::string text = absl::StrCat("\n turn from ", turn.begin, " to ", turn.end(), " ", turn.facts);
  for (const Event& event : turn.events) {
    absl::StrAppend(&text, " event ", event.index());
    if (const auto* fed = std::get_if<TokensFed>(&event)) {
      for (const int32_t token : fed->tokens) absl::StrAppend(&text, " ", token);
    }
  }
  return text;
}

std::string DescribeRequest(const RequestRecord& request) {
  return absl::StrCat("\n request ", request.key, " ", request.digest, " ", request.position, " ",
                      request.outcome, " ", request.reply);
}

}  // namespace

std::string SlabText(const std::string& secret, const ExpectedSession::Snapshot& snapshot) {
  return absl::StrCat(secret, " snapshot ", snapshot.id, " after ", snapshot.position, " tokens ",
                      std::string(700, 'x'));
}

std::string DescribeStored(SessionStore& store, FileSystem& files, const SessionRecord& session,
                           const std::set<std::string>& keys) {
  std::string text = absl::StrCat(session.id, " at ", session.fed_tokens, " ",
                                  session.pending_token.value_or(-1), " ", session.facts);
  const auto turns = store.ReadTurns(session.id, session.first_turn, 1000);
  if (!turns.ok()) return absl::StrCat(text, turns.status().ToString());
  for (const Turn& turn : *turns) text += DescribeTurn(turn);
  const auto snapshots = store.ReadSnapshots(session.id);
  if (!snapshots.ok()) return absl::StrCat(text, snapshots.status().ToString());
  for (const SnapshotRecord& snapshot : *snapshots) {
    absl::StrAppend(&text, "\n snapshot ", snapshot.id, " ", snapshot.position, " ", snapshot.turn);
    const auto slab = SlabReader::Open(files, store.SnapshotPath(snapshot.id));
    if (!slab.ok()) return absl::StrCat(text, slab.status().ToString());
    std::string bytes((*slab)->sections()[0].raw_bytes, '\0');
    const absl::Status read =
        (*slab)->ReadSection("state", std::as_writable_bytes(std::span(bytes)));
    absl::StrAppend(&text, " ", read.ToString(), " ", bytes);
  }
  const auto checkpoints = store.ReadCheckpoints(session.id);
  if (!checkpoints.ok()) return absl::StrCat(text, checkpoints.status().ToString());
  for (const CheckpointRecord& one : *checkpoints) {
    absl::StrAppend(&text, "\n checkpoint ", one.name, " ", one.position);
  }
  for (const std::string& key : keys) {
    const auto request = store.FindRequest(session.owner, key);
    if (!request.ok()) return absl::StrCat(text, request.status().ToString());
    if (request->has_value() && (*request)->session == session.id) {
      text += DescribeRequest(**request);
    }
  }
  return text;
}

std::string ExpectedSession::Describe() const {
  std::string text =
      absl::StrCat(id, " at ", fed_tokens, " ", pending_token.value_or(-1), " ", facts);
  for (const Turn& turn : turns) text += DescribeTurn(turn);
  for (const Snapshot& one : snapshots) {
    absl::StrAppend(&text, "\n snapshot ", one.id, " ", one.position, " ", one.turn, " OK ",
                    SlabText(secret, one));
  }
  for (const auto& [name, position] : checkpoints) {
    absl::StrAppend(&text, "\n checkpoint ", name, " ", position);
  }
  for (const auto& [key, request] : requests) text += DescribeRequest(request);
  return text;
}

std::set<std::string> ExpectedSession::Secrets(bool of_snapshots) const {
  std::set<std::string> secrets = {secret};
  for (const Turn& turn : turns) secrets.insert(turn.facts);
  if (of_snapshots) {
    for (const Snapshot& one : snapshots) secrets.insert(SlabText(secret, one));
  }
  for (const auto& [key, request] : requests) {
    if (!request.reply.empty()) secrets.insert(request.reply);
  }
  for (const auto& [name, position] : checkpoints) secrets.insert(name);
  return secrets;
}

// The two newest, the one that the log begins with, and the one below each checkpoint.
void ExpectedSession::KeepSnapshots() {
  std::vector<Snapshot> kept;
  for (size_t i = 0; i < snapshots.size(); ++i) {
    bool needed = i + 2 >= snapshots.size() || (first_turn > 0 && snapshots[i].turn == first_turn);
    for (const auto& [name, position] : checkpoints) {
      needed |= snapshots[i].position <= position &&
                (i + 1 == snapshots.size() || position < snapshots[i + 1].position);
    }
    if (needed) kept.push_back(snapshots[i]);
  }
  snapshots = std::move(kept);
}

void ExpectedSession::Keep(std::vector<Turn> left, int64_t position) {
  turns = std::move(left);
  fed_tokens = position;
  std::erase_if(snapshots, [&](const auto& one) { return one.position > position; });
  std::erase_if(checkpoints, [&](const auto& one) { return one.second > position; });
  const int64_t end = position + (pending_token.has_value() ? 1 : 0);
  std::erase_if(requests, [&](const auto& one) { return one.second.position > end; });
}

void ExpectedSession::GoBack(int64_t position, const std::string& facts_there) {
  std::vector<Turn> kept;
  facts = first_facts;
  bool pending = first_pending.has_value();
  for (Turn& turn : turns) {
    if (turn.end() > position && turn.begin >= position) break;
    if (turn.end() > position) {
      TokensFed& fed = std::get<TokensFed>(turn.events.back());
      fed.tokens.resize(static_cast<size_t>(position - turn.begin));
      turn.pending_token.reset();
      turn.facts = facts_there;
    }
    pending = turn.pending_token.has_value();
    facts = turn.facts;
    kept.push_back(turn);
  }
  if (pending) {  // it is gone from where it was, too, and snapshots have it
    (kept.empty() ? first_pending : kept.back().pending_token).reset();
    kept.push_back({.begin = position, .facts = facts = facts_there});
    std::erase_if(snapshots, [&](const Snapshot& one) {
      const bool begins_log = first_turn > 0 && one.turn == first_turn;
      return one.position == position && !begins_log;
    });
  }
  pending_token.reset();
  Keep(std::move(kept), position);
}

bool ExpectedSession::GoBackToTurn(int64_t position) {
  const Turn first = {.begin = first_token, .pending_token = first_pending, .facts = first_facts};
  for (size_t left = turns.size() + 1; left-- > 0;) {
    const Turn& last = left == 0 ? first : turns[left - 1];
    const int64_t end = last.end() + (last.pending_token.has_value() ? 1 : 0);
    if (end != position) continue;
    // Whether what came next went on from its pending token.
    bool goes_on = true;
    if (last.pending_token.has_value() && left < turns.size()) {
      const auto* fed =
          turns[left].events.empty() ? nullptr : std::get_if<TokensFed>(&turns[left].events.back());
      goes_on = fed != nullptr && fed->tokens.front() == *last.pending_token;
    }
    if (!goes_on) continue;
    pending_token = last.pending_token;
    facts = last.facts;
    const int64_t there = last.end();  // `last` goes
    Keep({turns.begin(), turns.begin() + static_cast<ptrdiff_t>(left)}, there);
    return true;
  }
  return false;
}

}  // namespace mneme
