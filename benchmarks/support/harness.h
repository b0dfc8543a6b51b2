// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/row.h"

namespace heed::bench {

/// Registers one Google Benchmark for each contestant of each row, `<row>/<contestant>`. The first
/// of a row to run measures the whole row: checks that all results agree, times all interleaved
/// for about `seconds`, and takes each one's peak memory and, on a GPU, kernels. The label is that
/// of the row.
///
/// Reported time: the median. Counters: rounds, peak_bytes, kernels, peak_limit of ours, FLOP/s and
/// bytes/s where the row counts them; for a peer also ratio (its median over ours), ratio_low,
/// ratio_high (95 %), target, and share where it has one, by which the ratio is multiplied. A peer
/// that refuses the inputs is skipped with its reason.
void register_rows(const Rows& rows, double seconds);

/// Answers each line `<row> <samples> <calls>` of standard input with the seconds that a call of
/// ours takes in that row: the median of so many samples, each the mean of so many calls. For
/// another process to take turns with.
void answer_turns(const Rows& rows);

/// Rows that could not be measured: a contestant threw, or results disagreed.
int failed_rows();

}  // namespace heed::bench
