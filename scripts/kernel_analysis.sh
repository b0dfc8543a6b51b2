#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Says how near the kernels' inner loops come to what ARM processors can do, without such a processor: compiles
# the kernels to assembly and simulates the loops with llvm-mca. This is analysis; nothing is measured.
#
# It works in the Debian of compat_matrix.sh's row debian13-arm64, and needs what that needs.
usage="usage: scripts/kernel_analysis.sh [--roots FOLDER] [--doc]
  --roots  folder with one folder for each system (build/roots)
  --doc    also write the tables into docs/kernels.md"

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"
# shellcheck source=scripts/lib/system.sh
. scripts/lib/system.sh

roots=$heed_work/roots
update_doc=false
while [ $# -gt 0 ]; do
  case $1 in
    --roots)
      [ $# -gt 1 ] || fail "$1 needs a value."
      roots=$(cd "$caller" && realpath -m "$2")
      shift 2
      ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done

# compile INSTRUCTION_SET COMPILER: the kernels, to /kernels/<instruction set>.<source>.s.
compile() {
  local script flags
  script='include(cmake/kernels.cmake)
    heed_kernel_flags(${SET} flags)
    string(REPLACE ";" " " flags "${flags}")
    message("${flags}")'
  # shellcheck disable=SC2016  # for the inner shell
  in_system bash -ec '
    cd /kernels
    echo "$3" >flags.cmake
    flags=$(cmake -DSET="$1" -DCMAKE_CXX_COMPILER_ID=GNU -P flags.cmake 2>&1)
    for source in src/cpu/isa/{matrix,scores,decode}.cpp; do
      "$2" -std=c++17 $flags -fPIC -fvisibility=hidden "-DHEED_ISA=$1" -Isrc -S "$source" \
        -o "$1.$(basename "$source" .cpp).s"
    done' compile "$1" "$2" "$script"
}

tables() {
  in_system aarch64-linux-gnu-g++ --version | sed -E '1s/.*\) ([0-9.]+).*/Compiled by g++ \1, /; 1!d' |
    tr -d '\n'
  in_system llvm-mca --version | sed -n 's/.*LLVM version \([0-9.]*\).*/simulated by llvm-mca \1./p'
  echo
  in_system python3 /kernels/scripts/lib/kernel_loops.py /kernels
}

scripts/compat_matrix.sh --row debian13-arm64 --roots "$roots" --setup
system=$roots/debian13-arm64
rm -rf "${system:?}/kernels"
mkdir -p "$system/kernels"
git ls-files -z cmake/kernels.cmake src/core/element_types.h src/cpu/isa scripts/lib/kernel_loops.py |
  xargs -0 cp --parents -t "$system/kernels"
for instruction_set in neon neon_bf16; do compile "$instruction_set" aarch64-linux-gnu-g++; done
for instruction_set in avx2 avx512 avx512_bf16; do compile "$instruction_set" x86_64-linux-gnu-g++; done
text=$(tables)
echo "$text"
if $update_doc; then echo "$text" | put_between analysis docs/kernels.md; fi
