// A step whose rows are cut where segments end, for networks in which a segment reads what the one
// before it has written (CutRowsArgs).
#pragma once

#include "models/forward_context.h"

namespace mneme {

// Rounds follow one another; in each of them every row has the tokens of one segment, or none.
// Lives in the caller's workspace scope.
class StepRounds {
 public:
  // `longest`: tokens of the longest row, at least 1.
  StepRounds(ForwardContext& ctx, int longest, int segment);

  int count() const { return count_; }
  int room() const { return room_; }  // tokens of a round, padding included
  // [tokens] i32: CutRowsArgs::places of the round that was cut last; tokens of other rounds:
  // room().
  const TensorView& places() const { return places_; }

  struct Round {
    StepBatch batch;
    TensorView tokens;  // [room] i32: the step's token that each is
  };
  // In the workspace scope of the round.
  Round Cut(int round) const;

 private:
  ForwardContext& ctx_;
  int longest_, segment_, count_, room_;
  TensorView places_;
};

}  // namespace mneme
