#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Makes the .debs and the archive (docs/packaging.md), installs each in a clean Debian of this machine's
# release, builds a program with it and runs the program.
#
#   scripts/check_packages.sh [MIRROR]    debootstrap's own mirror if not given
#   scripts/check_packages.sh --twice     instead builds and packs two copies, which must be the same bit for bit
#
# debootstrap makes the clean Debian in a separate folder. This needs root; --twice does not.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"
# shellcheck source=scripts/lib/system.sh
. scripts/lib/system.sh

mirror=${1:-}
packages=$heed_work/packages
system=$heed_work/clean-debian

# in_system_quietly WHAT COMMAND...
in_system_quietly() {
  quietly "$1" "$heed_work/clean-debian.log" in_system "${@:2}" || fail "$1 failed; its output is above."
}

# use_heed PREFIX...: builds and runs a program with what is installed there.
use_heed() {
  local prefixes
  prefixes=$(IFS=';' && echo "$*")
  in_system cmake -DGENERATOR="Unix Makefiles" -DCOMPILER=c++ -DCONFIG=Release -DWORK_DIR=/consumer \
    "-DPREFIXES=$prefixes" -P /heed/tests/package/use_installed.cmake || fail "heed could not be used."
}

# build_copy FOLDER: copies the sources, and builds and packs them there, without anything that was compiled before.
build_copy() {
  local options=(-DHEED_BUILD_TESTS=OFF -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_BENCHMARKS=OFF -DBUILD_SHARED_LIBS=ON)
  rm -rf "${1:?}"
  mkdir -p "$1"
  git ls-files -z | xargs -0 cp --parents -t "$1"
  (
    cd "$1"
    cmake --preset release "-DTorch_DIR=$torch_dir" "${options[@]}" &&
      CCACHE_DISABLE=1 cmake --build build/release --parallel "$(compile_jobs)" --target heed_libraries &&
      cpack --config build/release/CPackConfig.cmake -B packages
  )
}

# So that packages of one commit are the same.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

if [ "${1:-}" = --twice ]; then
  setup
  copies=("$heed_work/copy" "$heed_work/another copy of heed")
  for copy in "${copies[@]}"; do
    quietly "Building in $copy" "$heed_work/copy.log" build_copy "$copy" || fail "The build failed; its output is above."
  done
  diff -r --exclude=_CPack_Packages "${copies[0]}/packages" "${copies[1]}/packages" ||
    fail "The packages of two builds differ; see above."
  echo "The packages of two builds are the same: ${copies[0]}/packages"
  exit
fi

[ "$(id -u)" -eq 0 ] || fail "chroot needs root."
setup
install_packages debootstrap
build heed_libraries
rm -rf "${packages:?}" "${system:?}"
quietly "Packing" "$heed_work/cpack.log" cpack --config "$heed_build/CPackConfig.cmake" -B "$packages" ||
  fail "cpack failed; its output is above."

# Where LibTorch is not a Debian package, the system sees the folder that it is in.
shared=
if ! dpkg-query --search "$torch_dir/TorchConfig.cmake" >/dev/null 2>&1; then
  shared=$(realpath "$torch_dir/../../..")
fi

trap 'rm -rf "${system:?}"' EXIT
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
quietly "Making a clean Debian $suite: $system" "$heed_work/debootstrap.log" make_debian "$suite" "$mirror" ||
  fail "debootstrap failed; its output is above."
mkdir -p "$system/heed/tests"
cp -r tests/package "$system/heed/tests/"
cp "$packages"/*.deb "$packages"/*.tar.gz "$system/heed/"

apt=(apt-get --quiet --yes --no-install-recommends)
in_system_quietly "Installing a compiler there" sh -ec "${apt[*]} update && ${apt[*]} install g++ cmake make"
in_system_quietly "Installing the .debs" sh -ec "${apt[*]} install /heed/*.deb"
use_heed "$shared"
in_system_quietly "Removing the .debs" "${apt[@]}" remove 'libheed*'
in_system_quietly "Unpacking the archive" sh -ec 'mkdir /opt/heed && tar -x -f /heed/*.tar.gz -C /opt/heed --strip 1'
use_heed /opt/heed "$shared"
echo "The packages: $packages"
