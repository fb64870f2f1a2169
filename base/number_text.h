// Numbers as people wrote them.
#pragma once

#include <string>

namespace mneme {

// The shortest decimal that reads back as `value`: "0.7", where a fixed number of digits makes
// "0.69999999999999996" of it, or loses some. Without an exponent from 1e-5 up to 1e15.
std::string NumberText(double value);
// The shortest decimal that reads back as this float: "0.7", where the nearest double is
// 0.699999988.
std::string NumberText(float value);

}  // namespace mneme
