#!/usr/bin/env bash
# Makes the .debs and the archive (docs/packaging.md), installs each in a clean Debian of this machine's
# release, builds a program with it and runs the program.
#
#   scripts/check_packages.sh [MIRROR]    debootstrap's own mirror if not given
#
# debootstrap makes the clean Debian in a separate folder. This needs root.
set -euo pipefail
# shellcheck source=scripts/lib/environment.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/lib/environment.sh"
# shellcheck source=scripts/lib/system.sh
. scripts/lib/system.sh

mirror=${1:-}
packages=$heed_root/build/packages
system=$heed_root/build/clean-debian

# in_system_quietly WHAT COMMAND...
in_system_quietly() {
  quietly "$1" build/clean-debian.log in_system "${@:2}" || fail "$1 failed; its output is above."
}

# use_heed PREFIX...: builds and runs a program with what is installed there.
use_heed() {
  local prefixes
  prefixes=$(IFS=';' && echo "$*")
  in_system cmake -DGENERATOR="Unix Makefiles" -DCOMPILER=c++ -DCONFIG=Release -DWORK_DIR=/consumer \
    "-DPREFIXES=$prefixes" -P /heed/tests/package/use_installed.cmake || fail "heed could not be used."
}

[ "$(id -u)" -eq 0 ] || fail "chroot needs root."
setup
install_packages debootstrap
build heed_libraries
rm -rf "${packages:?}" "${system:?}"
quietly "Packing" build/cpack.log cpack --config "$heed_build/CPackConfig.cmake" -B "$packages" ||
  fail "cpack failed; its output is above."

# Where LibTorch is not a Debian package, the system sees the folder that it is in.
shared=
if ! dpkg-query --search "$torch_dir/TorchConfig.cmake" >/dev/null 2>&1; then
  shared=$(realpath "$torch_dir/../../..")
fi

trap 'rm -rf "${system:?}"' EXIT
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
quietly "Making a clean Debian $suite: $system" build/debootstrap.log make_debian "$suite" "$mirror" ||
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
