// Where prompts part, and what is forgotten.
#include "engine/sessions/prefix_tree.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/sessions/prefix_cache.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

using Tokens = std::vector<int32_t>;

// The ends of the nodes on the way to `leaf`, with what they are marked as.
std::map<int64_t, PrefixMark> Path(const PrefixNode* leaf) {
  std::map<int64_t, PrefixMark> path;
  for (; leaf->parent != nullptr; leaf = leaf->parent) path[leaf->end] = leaf->mark;
  return path;
}

Tokens TokensOf(const PrefixNode* leaf) {
  Tokens tokens;
  for (; leaf->parent != nullptr; leaf = leaf->parent) {
    tokens.insert(tokens.begin(), leaf->tokens.begin(), leaf->tokens.end());
  }
  return tokens;
}

using enum PrefixMark;

TEST(PrefixTreeTest, PromptsPartWhereTheyDiffer) {
  PrefixTree tree(1 << 20, [](PrefixNode&) {});
  PrefixNode* const a = tree.Insert("", Tokens{1, 2, 3, 4}, {});
  EXPECT_EQ(Path(a), (std::map<int64_t, PrefixMark>{{4, kNone}}));
  PrefixNode* const b = tree.Insert("", Tokens{1, 2, 5}, {});
  EXPECT_EQ(Path(a), (std::map<int64_t, PrefixMark>{{2, kWanted}, {4, kNone}}));
  EXPECT_EQ(Path(b), (std::map<int64_t, PrefixMark>{{2, kWanted}, {3, kNone}}));
  EXPECT_EQ(PrefixTree::Common(a, b)->end, 2);
  EXPECT_EQ(tree.Insert("", Tokens{1, 2, 5}, {}), b);
  EXPECT_EQ(b->mark, kWanted) << "it came again";
  PrefixNode* const longer = tree.Insert("", Tokens{1, 2, 3, 4, 5}, {});
  EXPECT_EQ(PrefixTree::Common(a, longer), a);
  EXPECT_EQ(a->mark, kWanted) << "another one goes on from its end";
  PrefixNode* const shorter = tree.Insert("", Tokens{1}, {});
  EXPECT_EQ(PrefixTree::Common(shorter, longer), shorter);
  EXPECT_EQ(shorter->mark, kWanted);
  EXPECT_EQ(PrefixTree::Common(a, tree.Insert("other", Tokens{1, 2}, {})), nullptr);
  EXPECT_EQ(tree.Insert("", Tokens{}, {}), nullptr);
}

TEST(PrefixTreeTest, WhatGoesOnIsNoPartingAndIsFoundByName) {
  PrefixTree tree(1 << 20, [](PrefixNode&) {});
  PrefixNode* const a = tree.Insert("", Tokens{1, 2}, {});
  PrefixNode* const answer = tree.Extend(*a, Tokens{3, 4}, {});
  EXPECT_EQ(a->mark, kNone);
  EXPECT_EQ(TokensOf(answer), (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(tree.Extend(*answer, Tokens{}, {}), answer);
  const uint64_t name = tree.NameOf(*answer);
  EXPECT_EQ(tree.NameOf(*answer), name);
  const std::vector<PrefixCut> cuts = {{3, kWanted}};
  PrefixNode* const other = tree.Extend(*a, Tokens{3, 9}, cuts);
  EXPECT_EQ(TokensOf(other), (Tokens{1, 2, 3, 9}));
  EXPECT_EQ(tree.Find(name), answer) << "also when it was split";
  EXPECT_EQ(tree.Find(0), nullptr);
  EXPECT_EQ(tree.Find(name + 1), nullptr);
}

TEST(PrefixTreeTest, NamesOfWhatWasForgottenNameNothing) {
  PrefixTree tree(4096, [](PrefixNode&) {});
  PrefixNode* const a = tree.Insert("", Tokens(100, 1), {});
  const uint64_t name = tree.NameOf(*a);
  EXPECT_EQ(tree.Extend(*a, Tokens(500, 1), {}), nullptr) << "more than half of the room";
  for (int i = 2; i < 20; ++i) tree.Insert("", Tokens(300, i), {});
  EXPECT_EQ(tree.Find(name), nullptr);
  EXPECT_NE(tree.NameOf(*tree.Insert("", Tokens(100, 1), {})), name);
}

TEST(PrefixTreeTest, CutsAreNodesAndTheStrongerMarkStays) {
  PrefixTree tree(1 << 20, [](PrefixNode&) {});
  const std::vector<PrefixCut> cuts = {{4, kGuess}, {2, kAsked}, {9, kGuess}, {0, kGuess}};
  PrefixNode* const a = tree.Insert("", Tokens{1, 2, 3, 4, 5}, cuts);
  EXPECT_EQ(Path(a), (std::map<int64_t, PrefixMark>{{2, kAsked}, {4, kGuess}, {5, kNone}}));
  const std::vector<PrefixCut> weaker = {{2, kGuess}, {4, kWanted}};
  EXPECT_EQ(tree.Insert("", Tokens{1, 2, 3, 4, 5}, weaker), a);
  EXPECT_EQ(Path(a), (std::map<int64_t, PrefixMark>{{2, kAsked}, {4, kWanted}, {5, kWanted}}));
  EXPECT_EQ(PrefixTree::EndingAt(a, 4)->end, 4);
  EXPECT_EQ(PrefixTree::EndingAt(a, 3), nullptr);
}

TEST(PrefixTreeTest, APathIsFoundInAllSpacesOfAnOwner) {
  PrefixTree tree(1 << 20, [](PrefixNode&) {});
  const std::string mine("me\0", 3), salted("me\0salt", 7), others("meet\0", 5);
  for (const std::string& space : {mine, salted, others}) {
    tree.Insert(space, Tokens{1, 2, 3, 4}, std::vector<PrefixCut>{{2, kAsked}});
    tree.Insert(space, Tokens{1, 2, 9}, {});
  }
  const std::vector<PrefixNode*> path = tree.OnPath("me", Tokens{1, 2, 3, 4, 5});
  std::vector<int64_t> ends;
  for (const PrefixNode* node : path) ends.push_back(node->end);
  EXPECT_EQ(ends, (std::vector<int64_t>{2, 4, 2, 4}));
  EXPECT_EQ(tree.OnPath("me", Tokens{1, 2, 3}).size(), 2u) << "what it was not fed is not its own";
  EXPECT_EQ(tree.OnPath("you", Tokens{1, 2, 3, 4}).size(), 0u);
  const int64_t bytes = tree.bytes();
  tree.RemoveUnused(*path[0]);  // another prompt goes through it
  EXPECT_EQ(tree.bytes(), bytes);
  tree.RemoveUnused(*path[1]);
  EXPECT_LT(tree.bytes(), bytes);
  EXPECT_EQ(tree.OnPath("me", Tokens{1, 2, 3, 4}).size(), 3u);
}

TEST(PrefixTreeTest, RandomPromptsAreFoundAndBytesAreBounded) {
  constexpr int64_t kBytes = 20'000;
  int forgotten = 0;
  PrefixTree tree(kBytes, [&](PrefixNode& node) {
    ++forgotten;
    node.snapshot.reset();
  });
  std::mt19937_64 random(5);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<std::pair<PrefixNode*, Tokens>> used;
  for (int i = 0; i < 20'000; ++i) {
    Tokens tokens;
    for (int k = pick(1, 30); k > 0; --k) tokens.push_back(pick(0, 2));
    const std::vector<PrefixCut> cuts = {{pick(0, 30), kGuess}, {pick(0, 30), kWanted}};
    PrefixNode* const leaf = tree.Insert(pick(0, 1) == 0 ? "a" : "b", tokens, cuts);
    ASSERT_EQ(TokensOf(leaf), tokens);
    ASSERT_EQ(leaf->end, static_cast<int64_t>(tokens.size()));
    if (leaf->snapshot == nullptr && pick(0, 3) == 0) {
      leaf->snapshot = std::make_unique<PrefixSnapshot>();
    }
    ++leaf->users;
    used.emplace_back(leaf, tokens);
    if (used.size() > 5) {
      const auto [left, held] = used.front();
      ASSERT_EQ(TokensOf(left), held) << "its address is the same, whatever was put in front";
      --left->users;
      used.erase(used.begin());
    }
    ASSERT_LE(tree.bytes(), kBytes);
  }
  EXPECT_GT(forgotten, 1000);
  for (const auto& [leaf, tokens] : used) --leaf->users;
}

}  // namespace
}  // namespace mneme
