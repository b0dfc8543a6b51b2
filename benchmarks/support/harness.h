#pragma once

#include "support/row.h"

namespace heed::bench {

/// Registers one Google Benchmark for each contestant of each row, `<row>/<contestant>`. The first
/// of a row to run measures the whole row: checks that all results agree, times all interleaved
/// for about `seconds`, and takes each one's peak memory.
///
/// Reported time: the median. Counters: rounds, peak_bytes, FLOP/s and bytes/s where the row counts
/// them; for a peer also ratio (its median over ours), ratio_low, ratio_high (95 %) and target.
void register_rows(const Rows& rows, double seconds);

/// Rows that could not be measured: a contestant threw, or results disagreed.
int failed_rows();

}  // namespace heed::bench
