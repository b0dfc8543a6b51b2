#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Measures training and attention over several processes, next to one process and to Python's
# DistributedDataParallel. The results are in build/bench: distributed.json and distributed.md.
usage="usage: scripts/bench_distributed.sh [--rounds N] [--build FOLDER] [--doc]
  --rounds   number of rounds, in each of which everything is measured once (7)
  --build    use this configured build folder as it is, instead of setting one up
  --doc      also write the tables into docs/distributed.md
As root, it also measures two network namespaces, whose link tc slows down to 1 Gbit/s."

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"

rounds=7
given_build=
update_doc=false
while [ $# -gt 0 ]; do
  case $1 in
    --rounds | --build) [ $# -gt 1 ] || fail "$1 needs a value." ;;&
    --rounds) rounds=$2 && shift 2 ;;
    --build) given_build=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done

build_benchmark heed_distributed_bench

out=$heed_work/bench
mkdir -p "$out"
"$heed_python" benchmarks/distributed_rounds.py "$heed_build/benchmarks/heed_distributed_bench" \
  --out "$out/distributed.json" --rounds "$rounds" \
  --revision "$(git describe --always --dirty 2>/dev/null || echo unknown)" ||
  fail "A measurement failed; its output is above."
"$heed_python" benchmarks/distributed_report.py "$out/distributed.json" >"$out/distributed.md"
if $update_doc; then
  "$heed_python" benchmarks/distributed_report.py "$out/distributed.json" --doc docs/distributed.md
fi
echo "The tables: $out/distributed.md"
