#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds heed and runs its tests on other systems, with other versions of LibTorch, compilers, versions of CMake and of
# C++, and makes a table of the results. Each system is a folder that debootstrap fills.
#
# It needs debootstrap, and root for chroot. A row takes up to 10 GB while it runs. Systems are kept, so that the next
# run begins with what there is; what was built, and pip's LibTorch, is removed after a row that passed. pip's variables
# are passed on, and a folder in PIP_FIND_LINKS is visible in each system.
usage="usage: scripts/compat_matrix.sh [--row NAME]... [--roots FOLDER] [--mirror URL] [--everything]
                                [--setup] [--keep] [--doc]
  --row         run only this row; may be given several times (all rows)
  --roots       folder with one folder for each system (build/roots)
  --mirror      mirror of the system's packages (debootstrap's own)
  --everything  also build the examples and benchmarks of rows that run all tests, and test the examples
  --setup       only make the systems, without building heed
  --keep        also keep the builds and LibTorch of rows that passed
  --doc         also write the rows' results into the table of docs/compatibility.md, whose other rows stay"

caller=$PWD
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"
# shellcheck source=scripts/lib/system.sh
. scripts/lib/system.sh

# LibTorch is the system's, or pip's of that version; =2.13.0 is exactly that, without "+cpu": the CUDA build. CMake is the
# system's, or pip's. heed and the programs that use it are compiled as that C++. Tests are all, or those of the guide: the
# code of all guides, and a program that uses heed as it was installed. Each file is then compiled by itself, as in a project
# that adds heed's sources.
rows=(
  # name               suite     LibTorch compiler          CMake  C++ library tests
  "debian13            trixie    system   g++-14            system 17  static  all"
  "debian12            bookworm  2.13.0   g++-12            system 17  static  all"
  "ubuntu2604          resolute  2.15.0   g++-15            system 17  static  all"
  "debian-unstable     sid       system   g++-16            system 17  static  all"
  "debian12-cuda       bookworm  =2.13.0  g++-12            system 17  static  all"
  "debian12-clang14    bookworm  2.13.0   clang-14          3.22.6 17  static  guide"
  "debian12-clang15    bookworm  2.7.1    clang-15          system 20  shared  guide"
  "debian12-clang16    bookworm  2.8.0    clang-16          system 20  static  guide"
  "debian13-clang17    trixie    2.10.0   clang-17          system 20  static  guide"
  "debian13-clang18    trixie    2.11.0   clang-18          system 20  shared  guide"
  "ubuntu2404          noble     2.12.1   g++-13            system 17  shared  guide"
  "ubuntu2604-clang19  resolute  system   clang-19          system 23  shared  guide"
  "ubuntu2604-clang20  resolute  2.14.1   clang-20          system 23  static  guide"
  "debian13-arm64      trixie    system   aarch64-linux-gnu system 17  static  all"
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
keep=false
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
    --keep) keep=true && shift ;;
    --doc) update_doc=true && shift ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
done
if [ ${#chosen[@]} -eq 0 ]; then chosen=("${rows[@]}"); fi

# logged WHAT COMMAND...: its output goes into the row's log.
logged() {
  echo "$name: $1"
  echo "== $(date '+%F %T') $1" >>"$log"
  "${@:2}" >>"$log" 2>&1
}

# Whether the row is built by a cross compiler, and its tests are emulated.
is_emulated() { [[ $compiler = aarch64-* ]]; }

# The row's compiler: its program, and the package that has it.
compiler_program() {
  case $compiler in
    aarch64-*) echo "$compiler-g++" ;;
    clang-*) echo "${compiler/clang/clang++}" ;;
    *) echo "$compiler" ;;
  esac
}

system_packages() {
  if is_emulated; then
    echo ca-certificates cmake ninja-build ccache git "g++-$compiler" g++ qemu-user llvm python3 \
      python3-torch python3-sklearn python3-safetensors
    return
  fi
  echo ca-certificates cmake ninja-build ccache git "$compiler" libgtest-dev libgmock-dev \
    libfmt-dev libbenchmark-dev libcli11-dev libcairo2-dev fonts-dejavu-core libutf8proc-dev \
    libpcre2-dev nlohmann-json3-dev python3
  # clang takes the newest standard library that there is.
  if [[ $compiler = clang-* ]]; then echo g++ "libomp-${compiler#*-}-dev"; fi
  if [ "$libtorch" = system ]; then
    echo libtorch-dev python3-torch
    if [ "$tests" = all ]; then echo python3-sklearn python3-safetensors; fi
  fi
  if [ "$tests" = all ]; then echo file; fi  # by which CPack finds what a .deb needs
  if [ "$libtorch" != system ] || [ "$cmake" != system ]; then echo python3-venv; fi
}

# LibTorch for ARM64 and what tests need, in /opt/arm64. Not configured, it lacks the links to a BLAS.
unpack_arm64() {
  unpack_debian /opt/arm64 arm64 "$suite" \
    libtorch-dev,libopenblas0-pthread,libgtest-dev,libgmock-dev,libfmt-dev,nlohmann-json3-dev,libutf8proc-dev,libpcre2-dev \
    "$mirror" || return
  (cd "$system/opt/arm64/usr/lib/aarch64-linux-gnu" && ln -sf openblas-pthread/*.so.* .)
}

# Of what pip installs, all but LibTorch and CMake is pinned by hash. Tests of the guide need LibTorch alone.
# shellcheck disable=SC2016  # for the inner shell
install_torch() {
  mkdir -p "$system/opt/pip"
  cp scripts/lib/locked.py scripts/lib/requirements.txt "$system/opt/pip/"
  in_system bash -ec '
    [ -d "$1" ] || python3 -m venv "$1"
    cd /opt/pip
    if [ "$3" = all ]; then
      python3 locked.py requirements.txt torch numpy scikit-learn safetensors >locked.txt
      "$1/bin/pip" install --quiet --no-deps --require-hashes --requirement locked.txt
    fi
    "$1/bin/pip" install --quiet --no-cache-dir "torch==$2"' pip "$venv" "$libtorch" "$tests"
}

# shellcheck disable=SC2016  # for the inner shell
install_cmake() {
  in_system bash -ec '
    [ -d "$1" ] || python3 -m venv "$1"
    "$1/bin/pip" install --quiet "cmake==$2"' pip "/opt/cmake-$cmake" "$cmake"
}

# Makes the row's system, or what is missing of it.
make_system() {
  # A mirror may hold a state of the past, as snapshot.debian.org does.
  local apt=(apt-get --quiet --yes --no-install-recommends -o Acquire::Check-Valid-Until=false)
  local packages
  if [ ! -e "$system/.made" ]; then
    logged "a system of $suite" make_debian "$suite" "$mirror" || return
    touch "$system/.made"
  fi
  read -r -a packages <<<"$(system_packages | paste -sd ' ')"
  logged "lists of packages" in_system "${apt[@]}" update || return
  logged "packages" in_system "${apt[@]}" install "${packages[@]}" || return
  if is_emulated && [ ! -e "$system/opt/arm64/.made" ]; then
    logged "LibTorch for ARM64" unpack_arm64 || return
    touch "$system/opt/arm64/.made"
  fi
  if [ "$cmake" != system ]; then logged "CMake $cmake" install_cmake || return; fi
  if [ "$libtorch" != system ]; then logged "torch $libtorch" install_torch || return; fi
}

# The files of this clone, with their times, so that a second build knows what it has built.
copy_sources() {
  rm -rf "${system:?}/heed"
  mkdir -p "$system/heed"
  git ls-files -z | xargs -0 cp --parents --preserve=timestamps -t "$system/heed"
}

# shellcheck disable=SC2016  # for the inner shell
build_and_test() {
  local python=python3 prefix= cmake_folder=/usr/bin targets=all chosen_tests=()
  local options=("-DHEED_BUILD_EXAMPLES=$everything" "-DHEED_BUILD_BENCHMARKS=$everything")
  if [ "$libtorch" != system ]; then
    python=$venv/bin/python
    prefix=$(in_system "$python" -c 'import torch; print(torch.utils.cmake_prefix_path)')
  fi
  if [ "$cmake" != system ]; then cmake_folder=/opt/cmake-$cmake/bin; fi
  if [ "$tests" = guide ]; then
    options=(-DHEED_BUILD_EXAMPLES=ON -DHEED_BUILD_BENCHMARKS=OFF -DHEED_BUILD_DISTRIBUTED=OFF -DCMAKE_UNITY_BUILD=OFF)
    targets="guide heed_libraries"
    chosen_tests=(--tests-regex "^(examples[.]guide|package[.]$library)\$")
  fi
  options+=("-DCMAKE_CXX_STANDARD=$standard")
  if [ "$library" = shared ]; then options+=(-DBUILD_SHARED_LIBS=ON); fi
  in_system env CXX="$(compiler_program)" CMAKE_PREFIX_PATH="$prefix" OMP_WAIT_POLICY=PASSIVE \
    CCACHE_BASEDIR=/heed CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros \
    bash -ec '
      cd /heed
      PATH=$1:$PATH build=$2 python=$(command -v "$3") jobs=$4 targets=$5 count=$6
      shift 6
      rm -f "$build/CMakeCache.txt" "$build/tests.xml"
      cmake --preset release -B "$build" "-DHEED_PYTHON=$python" "${@:1:count}"
      cmake --build "$build" --parallel "$jobs" --target $targets
      ctest --test-dir "$build" --output-on-failure --output-junit tests.xml --parallel "$jobs" "${@:count + 1}"' \
    build "$cmake_folder" "$build" "$python" "$(compile_jobs)" "$targets" "${#options[@]}" "${options[@]}" \
    "${chosen_tests[@]}"
}

# The package tests build for this machine, and starting several processes needs an emulator in the kernel.
# shellcheck disable=SC2016  # for the inner shell
cross_build_and_test() {
  in_system env OMP_WAIT_POLICY=PASSIVE \
    CCACHE_BASEDIR=/heed CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros \
    bash -ec '
      cd /heed
      rm -rf "$5"/{CMakeCache.txt,tests.xml,cases}
      cmake --preset release -B "$5" --toolchain cmake/aarch64-linux-gnu.cmake \
        -DCMAKE_SYSROOT=/opt/arm64 -DHEED_PYTHON=/usr/bin/python3 -DHEED_BUILD_DISTRIBUTED=OFF \
        -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF
      cmake --build "$5" --parallel "$1"
      tests="_test[.]|^parity|^fuzz|^InstructionSets|^structure"
      for processor in $2; do
        chosen=^attend_test
        filter=$3
        if [ "$processor" = "${2##* }" ]; then
          chosen=$tests
          filter=-$4
        fi
        echo "Tests on $processor"
        QEMU_CPU=$processor GTEST_FILTER=$filter ctest --test-dir "$5" --output-on-failure \
          --output-junit tests.xml --parallel "$1" --tests-regex "$chosen" --exclude-regex "^ops|^scripts|^docs"
      done' build "$(compile_jobs)" "$processors" "$kernel_cases" "$slow_cases" "$build"
}

# How many tests ran and passed.
count_tests() {
  grep -c '<testcase [^>]*status="run"' "$system$build/tests.xml" || true
}

# count_cases RESULT: how many cases of the programs had it, each of which is one test where emulated.
count_cases() {
  cat "$system$build"/cases/*.xml | grep -c "<testcase .*result=\"$1\"" || true
}

# attribute NAME: of the run of all tests.
attribute() {
  sed -n "/<testsuite /,/>/s/.*\b$1=\"\([0-9]*\)\".*/\1/p" "$system$build/tests.xml" | head -n 1
}

# The row's line of the table, from what its build left.
write_line() {
  local torch_dir version results
  torch_dir=$(sed -n 's/^Torch_DIR:[A-Z]*=//p' "$system$build/CMakeCache.txt")
  version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$system$torch_dir/TorchConfigVersion.cmake")
  if [ -e "$system$torch_dir/../../../lib/libtorch_cuda.so" ]; then version+=" for CUDA"; fi
  results="all: $(count_tests) passed, $(attribute skipped) skipped"
  if is_emulated; then results="all: $(count_cases completed) passed, $(count_cases skipped) skipped"; fi
  if [ "$tests" = guide ]; then results="guide: $(count_tests) passed"; fi
  if [ "$(attribute failures)" != 0 ]; then results="**$(attribute failures) failed**, $results"; fi
  # shellcheck disable=SC2016  # for the inner shell
  echo "| $name | $(in_system sh -c '. /etc/os-release; echo "$PRETTY_NAME"')$(is_emulated && echo ", ARM64 (emulated)")" \
    "| $version" \
    "| $(in_system "$(compiler_program)" --version | sed -E '1!d; s/ *\([^)]*\)//; s/^(Debian|Ubuntu) //; s/^g[+]{2}-[0-9]+/g++/; s/ version//; s/ +\(.*//')" \
    "| $(sed -n 's/^CMAKE_CACHE_[A-Z]*_VERSION:[A-Z]*=//p' "$system$build/CMakeCache.txt" | paste -sd .)" \
    "| $standard | $library | $results" \
    "| $(git describe --always --dirty) | $(date -u +%F) |" >"$roots/$name.line"
}

# The line of a row that ran here, else that of the document.
line_of() {
  cat "$roots/$1.line" 2>/dev/null || grep "^| $1 |" docs/compatibility.md || true
}

table() {
  local row
  echo "| row | system | LibTorch | compiler | CMake | C++ | library | tests | heed | date |"
  echo "|---|---|---|---|---|---|---|---|---|---|"
  for row in "${rows[@]}"; do line_of "${row%% *}"; done
}

[ "$(id -u)" -eq 0 ] || fail "chroot needs root."
command -v debootstrap >/dev/null || fail "debootstrap is missing (Debian: debootstrap)."
mkdir -p "$roots"
failed=()
for row in "${chosen[@]}"; do
  read -r name suite libtorch compiler cmake standard library tests <<<"$row"
  system=$roots/$suite log=$roots/$name.log
  # As seen from the system. Two rows may have builds of LibTorch of one version.
  build=/build/$name venv=/opt/$name
  : >"$log"
  if ! make_system; then
    failed+=("$name")
    continue
  fi
  if $setup_only; then continue; fi
  copy_sources
  command=build_and_test
  if is_emulated; then command=cross_build_and_test; fi
  passed=true
  logged "build and tests" "$command" || passed=false
  if [ -e "$system$build/tests.xml" ]; then write_line; fi
  if ! $passed; then
    failed+=("$name")
  elif ! $keep; then
    rm -rf "${system:?}$build" "${system:?}$venv"
  fi
done

if ! $setup_only; then table; fi
if $update_doc; then table | put_between matrix docs/compatibility.md; fi
[ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}; see the logs in $roots."
