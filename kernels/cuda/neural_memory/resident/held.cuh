// The division of a head that holds steps back, among the blocks of a cluster.
#pragma once

#include "kernels/cuda/neural_memory/resident/head.cuh"
#include "kernels/held_steps.h"

namespace mneme::cuda::neural_memory::resident {

// A block has W_2 and S_2 of its hidden units in shared memory, with `ahead` W_1 and S_1, too.
// Where arrays begin there, in floats.
struct HeldDivision {
  Part parts[2];
  int places;  // of steps: those held back, and the token's own
  int weights[2], momenta[2];
  int keys, errors;       // [places, dim]: z_1, delta_2
  int z, deltas;          // [places, units]: z_2, delta_1
  int g, next_g, next_s;  // [places], before the token, and after it
  int dots[5];            // [places]: k and q, z, error, z of q with those of steps, times g
  int partial;            // twice [groups, columns]
  int outputs[2];         // [blocks, dim]
  int q, k, v, n, gain, gain_momenta, shift;  // [dim]
  int slope, of_q, z_of_q;                    // [units]
  int raw;                                    // q, k and v before convolutions, [3, dim]
  int floats;

  HeldDivision() = default;
  HeldDivision(int dim, int hidden, int blocks, int capacity, bool ahead) : floats(0) {
    const auto take = [this](int n) {
      const int taken = floats;
      floats += (n + 3) / 4 * 4;
      return taken;
    };
    const int units = hidden / blocks;
    parts[0] = Part(dim, units, hidden, units);
    parts[1] = Part(units, dim, dim, units * dim);
    places = capacity + 1;
    for (int l = 0; l < 2; ++l) {
      weights[l] = l == 1 || ahead ? take(dim * units) : 0;
      momenta[l] = l == 1 || ahead ? take(dim * units) : 0;
    }
    for (int* const vectors : {&keys, &errors}) *vectors = take(places * dim);
    for (int* const vectors : {&z, &deltas}) *vectors = take(places * units);
    for (int* const numbers : {&g, &next_g, &next_s}) *numbers = take(places);
    for (int& numbers : dots) numbers = take(places);
    partial = take(2 * 4 * kThreads);
    for (int& of_blocks : outputs) of_blocks = take(blocks * dim);
    for (int* const vector : {&q, &k, &v, &n, &gain, &gain_momenta, &shift}) *vector = take(dim);
    for (int* const vector : {&slope, &of_q, &z_of_q}) *vector = take(units);
    raw = take(3 * dim);
  }
};

// The way of q, k or v to the memory.
struct HeldInput {
  const void* x;             // [entries, heads, dim] f32, or bf16 if `rounded`
  const float *conv, *bias;  // [heads, dim, width] and [heads, dim], or null
  StateView window;          // [width - 1, heads, dim], of bf16 if `rounded_window`
  int width;
  bool rounded, rounded_window, silu, normed;
  float scale, eps;  // of its norm
};
// The layer's other work on a token, or nothing.
struct HeldLayer {
  bool inputs;  // else q, k, v and gates are what the memory takes
  HeldInput input[3];
  const float *a_log, *dt_bias;  // of the gate that keeps, or null
  // The answer's gate [entries, heads, dim], of bf16 if `rounded_gate`; null: no output.
  const void* gate;
  const float* norm;  // [dim]
  void* y;            // as the gate, of bf16 if `rounded_y`
  bool rounded_gate, rounded_y;
  float eps;
};

// resident/held.cu: steps of one token that are held back. plan.held: whether W_1 is read ahead.
void LaunchHeldSteps(Device& device, const Plan& plan, const Params& p, const HeldMemoryArgs& args,
                     const HeldLayer& layer);

}  // namespace mneme::cuda::neural_memory::resident
