#!/usr/bin/env bash
# Builds and runs the benchmarks; writes build/bench/report.json and build/bench/report.md.
usage="usage: scripts/bench.sh [--filter REGEX] [--threads N] [--seconds S] [--build FOLDER] [--doc]
  --filter   only rows whose name matches, such as '^attend/causal'
  --threads  LibTorch's threads (all cores)
  --seconds  time for each row (2)
  --build    a configured build folder to use as it is, instead of setting one up
  --doc      also put the tables into docs/performance.md"

caller=$PWD
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"

filter=.
seconds=2
given_build=
update_doc=false
while [ $# -gt 0 ]; do
  case $1 in
    --filter | --threads | --seconds | --build) [ $# -gt 1 ] || fail "$1 needs a value." ;;&
    --filter) filter=$2 && shift 2 ;;
    --threads) export OMP_NUM_THREADS=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    --build) given_build=$(cd "$caller" && realpath "$2") && shift 2 ;;
    --doc) update_doc=true && shift ;;
    --help) echo "$usage" && exit ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done

if [ -n "$given_build" ]; then
  heed_build=$given_build
  cmake --build "$heed_build" --target heed_bench || fail "The build failed; its output is above."
else
  setup
  build heed_bench
fi

out=$heed_root/build/bench
mkdir -p "$out"
status=0
"$heed_build/benchmarks/heed_bench" --row_seconds="$seconds" --benchmark_filter="$filter" \
  --benchmark_context="heed=$(git describe --always --dirty 2>/dev/null || echo unknown)" \
  --benchmark_out="$out/report.json" --benchmark_out_format=json || status=$?
[ -s "$out/report.json" ] || fail "heed_bench wrote no report; its output is above."
python3 scripts/bench_report.py "$out/report.json" >"$out/report.md"
if $update_doc; then python3 scripts/bench_report.py --doc docs/performance.md "$out/report.json"; fi
echo "The tables: $out/report.md"
exit $status
