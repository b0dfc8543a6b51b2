#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# write.sh VERSION SOURCE BUILD PYTHON: writes files/VERSION, as that version of heed writes it.
#
# SOURCE is a clone with that version checked out, BUILD its build folder, with the libraries heed and heed_ops, shared
# or static, and PYTHON a Python with the torch that they were built with. The tests read files that a release wrote:
# do not write these anew with a later version. 0.2 has no tag: it is commit 5795f0d2.
set -euo pipefail

[ $# -eq 4 ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }
version=$1 source=$(realpath "$2") build=$(realpath "$3") python=$4
here=$(realpath "$(dirname "$0")")
out=$here/files/$version
torch=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')
program=$(mktemp -d)
trap 'rm -rf "${program:?}"' EXIT

"${CXX:-c++}" -std=gnu++17 -O1 -I"$source/include" -isystem "$torch/include" \
  -isystem "$torch/include/torch/csrc/api/include" "$here/write_${version/./_}.cpp" -o "$program/write" \
  -L"$build" -lheed -fopenmp -L"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 \
  "-Wl,-rpath,$torch/lib:$build"
rm -rf "${out:?}"
"$program/write" "$out"
export_program=$here/export_${version/./_}.py
if [ -e "$export_program" ]; then
  "$python" "$export_program" --library "$build/libheed_ops.so" --out "$out/operators"
fi
du --bytes --all "$out"
