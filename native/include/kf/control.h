// The control block: what every rank adds to a step's last bucket so that all ranks know the
// same. Layout and arithmetic only; how the words are reduced is the caller's.
//
// Terms: sums, maxes: the two float64 vectors of a rank, reduced by sum and by max over all
// ranks;
//        row: one rank's vector; several rows let one process stand for many ranks.
// Threads: pure functions.
//
// The first kControlSums and kControlMaxes words are these; signals of policies follow them.
//   sums:  sum and count of each measured time and byte field; loss weighted by samples, and
//   the
//          samples it stands for; sum and count of |g_i|^2; ranks with a non-finite gradient;
//          samples
//   maxes: digest d, -d, step_s, compute_s
// A field that a rank did not measure is NaN there, and adds nothing here: no NaN ever travels.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace kf {

// What one rank measured. NaN: not measured. Order and names as in kfcore.policy.LocalStep.
struct LocalStep {
  double step_s;        // seconds from the end of one step to the end of the next
  double compute_s;     // seconds of it spent outside of collectives
  double comm_s;        // seconds of it spent waiting for collectives
  double comm_bytes;    // bytes this rank gave to the all-reduce
  double loss;          // mean over this rank's samples
  double grad_sq_norm;  // |g_i|^2 before the reduction; +inf: the gradient was not finite
  double samples;       // samples this rank's gradient stands for
};

inline constexpr std::size_t kLocalFields = 7;
inline constexpr std::size_t kControlSums = 14;
inline constexpr std::size_t kControlMaxes = 4;

// What all ranks know after the reduction. NaN: nobody measured it (see each field).
struct ClusterStep {
  double step_s;       // of the slowest rank
  double compute_s;    // of the slowest rank
  double mean_step_s;  // over the ranks that measured it; likewise the next three
  double mean_compute_s;
  double mean_comm_s;
  double mean_comm_bytes;
  double loss;               // mean over samples
  double mean_grad_sq_norm;  // mean over ranks of |g_i|^2; NaN unless every rank measured it
  double samples;            // of all ranks
  double nonfinite_ranks;    // ranks whose gradient was not finite
};

// Writes a rank's words to the front of `sums` and `maxes`; the rest of both is left alone.
// Throws Error{usage}: a vector is shorter than the layout.
void encode_local(const LocalStep& local, const std::array<double, 2>& digest_words,
                  std::span<double> sums, std::span<double> maxes);

// Writes the words of |g_i|^2 only; NaN and +inf as in LocalStep. Throws likewise.
void encode_norm(double grad_sq_norm, std::span<double> sums);

// Reads the reduced words. Throws Error{usage}: a vector is shorter than the layout.
ClusterStep decode_cluster(std::span<const double> sums, std::span<const double> maxes,
                           int world_size);

}  // namespace kf
