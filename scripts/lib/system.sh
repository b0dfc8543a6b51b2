# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
# Scripts that work in a separate Debian or Ubuntu source this after environment.sh. That system is a folder that
# debootstrap fills.
#
#   system   that folder
#   shared   a folder of this machine that is also visible in that system, or empty

# make_debian SUITE [MIRROR]: a suite of Debian or Ubuntu; MIRROR is debootstrap's own by default. Ubuntu's suites are
# newer than debootstrap knows: its script for older ones makes them. Where Ubuntu's keys are missing, debootstrap cannot
# check the signatures of its packages, and says so.
make_debian() {
  local suite=$1 mirror=${2:-} script=/usr/share/debootstrap/scripts/$1 components=main
  case $suite in
    noble | resolute)
      script=/usr/share/debootstrap/scripts/gutsy components=main,universe
      # shellcheck source=/dev/null
      mirror=${mirror:-$(
        ARCH=$(dpkg --print-architecture) SUITE=$suite
        default_mirror() { echo "$1"; }
        mirror_style() { exit; }  # it follows the mirror
        . "$script"
      )}
      ;;
  esac
  rm -rf "${system:?}"
  debootstrap --variant=minbase --components="$components" "$suite" "$system" "$mirror" "$script"
}

# unpack_debian FOLDER ARCHITECTURE SUITE PACKAGES [MIRROR]: packages for another architecture, separated by
# commas, and those they depend on, in a FOLDER of that Debian. They are not configured, which would run
# their programs; a cross compiler and an emulator need only the files.
unpack_debian() {
  local root=$system$1 archive
  rm -rf "${root:?}"
  debootstrap --foreign --variant=minbase --arch="$2" --include="$4" "$3" "$root" ${5:+"$5"} || return
  for archive in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$archive" "$root" || return; done
  rm "$root"/var/cache/apt/archives/*.deb
}

# in_system COMMAND...: runs the command there; of the caller's variables, only pip's are passed on. The
# mounts are in a separate namespace, and end with the command.
in_system() {
  local name variables=()
  for name in "${!PIP_@}"; do variables+=("$name=${!name}"); done
  cp /etc/resolv.conf "$system/etc/resolv.conf"
  # The certificates that the caller trusts, such as a proxy's.
  mkdir -p "$system/etc/ssl/certs"
  cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/"
  # shellcheck disable=SC2016  # for the inner shell
  unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    if [ -d "$2" ]; then mkdir -p "$1$2" && mount --bind "$2" "$1$2"; fi
    exec chroot "$1" "${@:3}"' in_system "$system" "${shared:-}" \
    env -i HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt "${variables[@]}" "$@"
}
