// Which vector instructions the reduction kernels use: found out when the program runs.
//
// Terms: level: "portable" (what every machine of this kind has; on 64-bit ARM that includes
//        NEON), "avx2" (with F16C), "avx512" (F, BW, DQ, VL).
// Threads: every call may be made by any thread.
//
// The choice is one for the whole process, and a matter of speed alone: every level gives the
// same bits, so ranks need not agree on it.
#pragma once

#include <string>
#include <vector>

namespace kf {

std::vector<std::string> simd_levels();  // that this machine has, slowest first
std::string simd_level();                // in use; at first the fastest
// Throws Error{usage} for a level that this machine does not have; the text lists those it has.
void use_simd_level(const std::string& level);

}  // namespace kf
