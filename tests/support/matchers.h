// Matchers for arrays of numbers. They say where the worst difference is and how it compares with
// what is allowed.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace mneme {

// |got[i] - want[i]| <= bound[i] for every i. A NaN is never within a bound.
testing::Matcher<const std::vector<double>&> IsWithin(std::vector<double> bound,
                                                      std::vector<double> want);
// The same bound for all.
testing::Matcher<const std::vector<double>&> IsWithin(double bound, std::vector<double> want);

// Equal bit by bit: -0 differs from 0, NaN equals itself.
testing::Matcher<const std::vector<double>&> HasSameBits(std::vector<double> want);

// Where `bit_exact`, equal bit by bit; otherwise with a RelativeError of at most `bound`: sums of
// fp32 numbers in another order stay well below kSameBound.
constexpr double kSameBound = 1e-5;
testing::Matcher<const std::vector<double>&> IsSame(bool bit_exact, std::vector<double> want,
                                                    double bound = kSameBound);

// Norm of the difference over norm of `want`.
double RelativeError(const std::vector<double>& got, const std::vector<double>& want);
// The largest of the rows of `width` values that they consist of.
double WorstRowError(const std::vector<double>& got, const std::vector<double>& want, int width);

}  // namespace mneme
