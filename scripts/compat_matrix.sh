#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds heed and runs its tests on systems with other versions of LibTorch and other compilers, and
# makes a table of the results. Each system is a folder that debootstrap fills.
#
# It needs debootstrap, and root for chroot. A folder takes up to 8 GB and is kept: after an
# interruption, the next run continues where the last one stopped. pip's variables are passed on, and a
# folder in PIP_FIND_LINKS is visible in each system.
usage="usage: scripts/compat_matrix.sh [--row NAME]... [--roots FOLDER] [--mirror URL] [--everything]
                                [--setup] [--doc]
  --row         run only this row; may be given several times (all rows)
  --roots       folder with one folder for each system (build/roots)
  --mirror      mirror of Debian's packages (debootstrap's own)
  --everything  also build the examples and benchmarks, and test the examples
  --setup       only make the systems, without building heed
  --doc         also write the table of each row's last result into docs/compatibility.md"

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"
# shellcheck source=scripts/lib/system.sh
. scripts/lib/system.sh

# A row's name, Debian suite, LibTorch ("debian" or pip's version), compiler's package and program. pip's
# =2.13.0 is exactly that, without "+cpu": the CUDA build.
rows=(
  "debian13         trixie   debian g++      g++"
  "debian13-clang   trixie   debian clang-22 clang++-22"
  "debian-unstable  sid      debian g++      g++"
  "debian12         bookworm 2.13.0 g++-12   g++-12"
  "debian12-clang   bookworm 2.13.0 clang-14 clang++-14"
  "debian12-cuda    bookworm =2.13.0 g++-12  g++-12"
  "debian13-arm64   trixie   debian g++-aarch64-linux-gnu aarch64-linux-gnu-g++"
)
# The processors that the row for ARM64 is emulated for. On the last run all tests, but those that take many
# minutes each; on the others those of the kernels.
processors="cortex-a72 neoverse-n1 neoverse-v1 max"
kernel_cases="InstructionSets*:Routes*:*Kernels*:*Decode*"
slow_cases="*AttendEverywhere.*/Double:*AttendEverywhere.*/Half:AttendInt8Paths.ReadKeysAsTheyAre"
chosen=()
roots=$heed_work/roots
mirror=
shared=${PIP_FIND_LINKS:-}
everything=OFF
setup_only=false
update_doc=false

choose_row() {
  local row
  for row in "${rows[@]}"; do
    if [ "${row%% *}" = "$1" ]; then chosen+=("$row") && return; fi
  done
  fail "there is no row $1; there are ${rows[*]%% *}"
}

while [ $# -gt 0 ]; do
  case $1 in
    --row | --roots | --mirror) [ $# -gt 1 ] || fail "$1 needs a value." ;;&
    --row) choose_row "$2" && shift 2 ;;
    --roots) roots=$(cd "$caller" && realpath -m "$2") && shift 2 ;;
    --mirror) mirror=$2 && shift 2 ;;
    --everything) everything=ON && shift ;;
    --setup) setup_only=true && shift ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done
if [ ${#chosen[@]} -eq 0 ]; then chosen=("${rows[@]}"); fi

# logged WHAT COMMAND...: its output goes into the row's log.
logged() {
  echo "$name: $1"
  echo "== $(date '+%F %T') $1" >>"$system.log"
  "${@:2}" >>"$system.log" 2>&1
}

# Whether the row is built by a cross compiler, and its tests are emulated.
is_emulated() { [[ $compiler = aarch64-* ]]; }

debian_packages() {
  if is_emulated; then
    echo ca-certificates cmake ninja-build ccache git "$compiler_package" g++ qemu-user llvm python3 \
      python3-torch python3-sklearn python3-safetensors
    return
  fi
  echo ca-certificates cmake ninja-build ccache git "$compiler_package" libgtest-dev libgmock-dev \
    libfmt-dev libbenchmark-dev libcli11-dev libcairo2-dev fonts-dejavu-core libutf8proc-dev \
    libpcre2-dev nlohmann-json3-dev python3
  if [[ $compiler_package = clang-* ]]; then echo "libomp-${compiler_package#*-}-dev"; fi
  if [ "$libtorch" = debian ]; then
    echo libtorch-dev python3-torch python3-sklearn python3-safetensors
  else
    echo python3-venv
  fi
}

# LibTorch for ARM64 and what tests need, in /opt/arm64. Not configured, it lacks the links to a BLAS.
unpack_arm64() {
  unpack_debian /opt/arm64 arm64 "$suite" \
    libtorch-dev,libopenblas0-pthread,libgtest-dev,libgmock-dev,libfmt-dev,nlohmann-json3-dev,libutf8proc-dev,libpcre2-dev \
    "$mirror" || return
  (cd "$system/opt/arm64/usr/lib/aarch64-linux-gnu" && ln -sf openblas-pthread/*.so.* .)
}

# Makes the row's system, or what is missing of it.
make_system() {
  # A mirror may hold a state of the past, as snapshot.debian.org does.
  local apt=(apt-get --quiet --yes --no-install-recommends -o Acquire::Check-Valid-Until=false)
  local packages
  if [ ! -e "$system/.made" ]; then
    logged "a system of Debian $suite" make_debian "$suite" "$mirror" || return
    touch "$system/.made"
  fi
  read -r -a packages <<<"$(debian_packages | paste -sd ' ')"
  logged "lists of packages" in_system "${apt[@]}" update || return
  logged "packages" in_system "${apt[@]}" install "${packages[@]}" || return
  if is_emulated && [ ! -e "$system/opt/arm64/.made" ]; then
    logged "LibTorch for ARM64" unpack_arm64 || return
    touch "$system/opt/arm64/.made"
  fi
  if [ "$libtorch" = debian ]; then return; fi
  mkdir -p "$system/opt/pip"
  cp scripts/lib/locked.py scripts/lib/requirements.txt "$system/opt/pip/"
  # shellcheck disable=SC2016  # for the inner shell
  logged "torch $libtorch" in_system bash -ec '
    [ -d /opt/venv ] || python3 -m venv /opt/venv
    cd /opt/pip
    python3 locked.py requirements.txt torch numpy scikit-learn safetensors >locked.txt
    /opt/venv/bin/pip install --quiet --no-deps --require-hashes --requirement locked.txt
    /opt/venv/bin/pip install --quiet "torch==$1"' pip "$libtorch"
}

# The files of this clone, with their times, so that a second build knows what it has built.
copy_sources() {
  rm -rf "${system:?}/heed"
  mkdir -p "$system/heed"
  git ls-files -z | xargs -0 cp --parents --preserve=timestamps -t "$system/heed"
}

# shellcheck disable=SC2016  # for the inner shell
build_and_test() {
  local python=python3 prefix=
  if [ "$libtorch" != debian ]; then
    python=/opt/venv/bin/python
    prefix=$(in_system "$python" -c 'import torch; print(torch.utils.cmake_prefix_path)')
  fi
  in_system env CXX="$compiler" CMAKE_PREFIX_PATH="$prefix" OMP_WAIT_POLICY=PASSIVE \
    CCACHE_BASEDIR=/heed CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros \
    bash -ec '
      cd /heed
      rm -f /build/CMakeCache.txt /build/tests.xml
      cmake --preset release -B /build "-DHEED_PYTHON=$(command -v "$1")" \
        "-DHEED_BUILD_EXAMPLES=$2" "-DHEED_BUILD_BENCHMARKS=$2"
      cmake --build /build --parallel "$3"
      ctest --test-dir /build --output-on-failure --output-junit tests.xml --parallel "$3"' \
    build "$python" "$everything" "$(compile_jobs)"
}

# The package tests build for this machine, and starting several processes needs an emulator in the kernel.
# shellcheck disable=SC2016  # for the inner shell
cross_build_and_test() {
  in_system env OMP_WAIT_POLICY=PASSIVE \
    CCACHE_BASEDIR=/heed CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros \
    bash -ec '
      cd /heed
      rm -rf /build/CMakeCache.txt /build/tests.xml /build/cases
      cmake --preset release -B /build --toolchain cmake/aarch64-linux-gnu.cmake \
        -DCMAKE_SYSROOT=/opt/arm64 -DHEED_PYTHON=/usr/bin/python3 -DHEED_BUILD_DISTRIBUTED=OFF \
        -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF
      cmake --build /build --parallel "$1"
      tests="_test[.]|^parity|^fuzz|^InstructionSets|^structure"
      for processor in $2; do
        chosen=^attend_test
        filter=$3
        if [ "$processor" = "${2##* }" ]; then
          chosen=$tests
          filter=-$4
        fi
        echo "Tests on $processor"
        QEMU_CPU=$processor GTEST_FILTER=$filter ctest --test-dir /build --output-on-failure \
          --output-junit tests.xml --parallel "$1" --tests-regex "$chosen" --exclude-regex "^ops|^scripts|^docs"
      done' build "$(compile_jobs)" "$processors" "$kernel_cases" "$slow_cases"
}

# count_tests NAME: how many, of those whose name begins so, ran and passed.
count_tests() {
  grep -c "<testcase name=\"$1[^>]*status=\"run\"" "$system/build/tests.xml" || true
}

# count_cases RESULT: how many cases of the programs had it, each of which is one test where emulated.
count_cases() {
  cat "$system"/build/cases/*.xml | grep -c "<testcase .*result=\"$1\"" || true
}

# attribute NAME: of the run of all tests.
attribute() {
  sed -n "/<testsuite /,/>/s/.*\b$1=\"\([0-9]*\)\".*/\1/p" "$system/build/tests.xml" | head -n 1
}

# The row's line of the table, from what its build left.
write_line() {
  local torch_dir version tests consumers all_consumers
  torch_dir=$(sed -n 's/^Torch_DIR:[A-Z]*=//p' "$system/build/CMakeCache.txt")
  version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$system$torch_dir/TorchConfigVersion.cmake")
  if [ -e "$system$torch_dir/../../../lib/libtorch_cuda.so" ]; then version+=" for CUDA"; fi
  tests="$(count_tests '') passed, $(attribute skipped) skipped"
  if is_emulated; then tests="$(count_cases completed) passed, $(count_cases skipped) skipped"; fi
  if [ "$(attribute failures)" != 0 ]; then tests="**$(attribute failures) failed**, $tests"; fi
  consumers=$(count_tests 'package\.')
  all_consumers=$(grep -c '<testcase name="package\.' "$system/build/tests.xml" || true)
  # shellcheck disable=SC2016  # for the inner shell
  echo "| $(in_system sh -c '. /etc/os-release; echo "$PRETTY_NAME"')$(is_emulated && echo ", ARM64 (emulated)")" \
    "| $version" \
    "| $(in_system "$compiler" --version | sed -E '1!d; s/ *\([^)]*\)//; s/^Debian //; s/^g[+]{2}-[0-9]+/g++/; s/ version//')" \
    "| $tests | $consumers of $all_consumers" \
    "| $(git describe --always --dirty) | $(date -u +%F) |" >"$system.line"
}

table() {
  local row
  echo "| system | LibTorch | compiler | tests | package tests | heed | date |"
  echo "|---|---|---|---|---|---|---|"
  for row in "${rows[@]}"; do cat "$roots/${row%% *}.line" 2>/dev/null || true; done
}

[ "$(id -u)" -eq 0 ] || fail "chroot needs root."
command -v debootstrap >/dev/null || fail "debootstrap is missing (Debian: debootstrap)."
mkdir -p "$roots"
failed=()
for row in "${chosen[@]}"; do
  read -r name suite libtorch compiler_package compiler <<<"$row"
  system=$roots/$name
  : >"$system.log"
  if ! make_system; then
    failed+=("$name")
    continue
  fi
  if $setup_only; then continue; fi
  copy_sources
  if is_emulated; then
    logged "build and tests" cross_build_and_test || failed+=("$name")
  else
    logged "build and tests" build_and_test || failed+=("$name")
  fi
  if [ -e "$system/build/tests.xml" ]; then write_line; fi
done

if ! $setup_only; then table; fi
if $update_doc; then table | put_between matrix docs/compatibility.md; fi
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}; see the logs in $roots."
